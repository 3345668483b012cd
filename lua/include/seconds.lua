-- Whether a number that should be milliseconds since the epoch can only be seconds: it lies in 1970 to 1973, and is not 0.
local function is_seconds(millis)
  return millis > 0 and millis < 100000000000
end

-- Whether a number that should be milliseconds since the epoch must be seconds: as ms it is in 1970 to 1973, and not 0.
local function is_seconds(millis)
  return millis > 0 and millis < 100000000000
end

-- Whether such a number must be in a smaller unit, or is not a time: as ms it is beyond the year 9999 at any offset.
local LAST_MILLIS = 253402387199999
local function is_far(millis)
  return millis > LAST_MILLIS
end

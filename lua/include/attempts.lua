-- Failures and crashes from "<failures> <crashes>", a value of `attempts`; both are 0 without one.
local function counts(value)
  if not value then return 0, 0 end
  local failures, crashes = string.match(value, '^(%d+) (%d+)$')
  return tonumber(failures), tonumber(crashes)
end

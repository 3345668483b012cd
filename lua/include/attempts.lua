-- The failures and crashes in a value of `attempts`, "<failures> <crashes>"; both are 0 without a value.
local function counts(value)
  if not value then return 0, 0 end
  local failures, crashes = string.match(value, '^(%d+) (%d+)$')
  return tonumber(failures), tonumber(crashes)
end

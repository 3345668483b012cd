-- include scores
-- A value of `errors` has the time in ms of the last failure, the number of failures, and the error.

-- `text` of a dead message begins with "<reason>: ".
local function failure(now, failures, text)
  return whole(now) .. ' ' .. failures .. ' ' .. text
end

-- The number of failures and the text of a value; 0 and "" for a missing value.
local function failed(value)
  local failures, text = string.match(value or '', '^%d+ (%d+) (.*)$')
  return tonumber(failures or 0), text or value or ''
end

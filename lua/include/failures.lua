-- include scores
-- Values of `errors`: when a message failed last, how often it failed, and the error.

-- `text` of a dead message begins with "<reason>: ".
local function failure(now, failures, text)
  return whole(now) .. ' ' .. failures .. ' ' .. text
end

-- Failures and text of a value; 0 and "" where it is missing.
local function failed(value)
  local failures, text = string.match(value or '', '^%d+ (%d+) (.*)$')
  return tonumber(failures or 0), text or value or ''
end

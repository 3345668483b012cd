-- include scores
-- A value of `errors`: "<time of the last failure (ms)> <number of failures> <error>", then the last attempts that
-- failed, the latest last, each after a zero byte: "<its end (ms)> <duration (ms)> <outcome> <status or -> <instance>
-- <error>". No text has a zero byte.

-- Attempts that are kept of a message, each of at most 300 bytes.
local MOST_ATTEMPTS = 10

-- The attempts in the former value of a message, and the latest one if it has a text.
local function attempts_of(former, now, latest)
  local log = string.match(former or '', '%z.*') or ''
  if latest == '' then return log end
  local _, count = string.gsub(log, '%z', '')
  for _ = MOST_ATTEMPTS, count do log = string.match(log, '.(%z.*)') or '' end
  return log .. '\0' .. whole(now) .. ' ' .. latest
end

-- `text` of a dead message begins with "<reason>: ". `former`: the former value. `latest`: the attempt that failed now,
-- "" for none.
local function failure(now, failures, text, former, latest)
  return whole(now) .. ' ' .. failures .. ' ' .. text .. attempts_of(former, now, latest or '')
end

-- The number of failures and the text of a value; 0 and "" for a missing value.
local function failed(value)
  value = string.match(value or '', '^[^%z]*')
  local failures, text = string.match(value, '^%d+ (%d+) (.*)$')
  return tonumber(failures or 0), text or value
end

-- The value of a message that is tried anew: no failure, and the attempts of `former`. Nothing if it has none.
local function tried_before(former)
  local log = attempts_of(former, 0, '')
  return log ~= '' and '0 0 ' .. log or nil
end

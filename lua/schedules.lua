-- include clock recurring
-- Reads schedules.
--
-- KEYS   pending unack messages schedules
-- ARGV   "one", id; or "page", cursor ("0" in the first call), COUNT for HSCAN
-- reply  now (ms), the next cursor, then for each schedule: id, its definition without the body, occurrence (ms), when it
--        was planned (ms), score in `pending` or "", 1 if it is in flight, otherwise 0, body after the times
local pending, unack, messages, schedules = unpack(KEYS)

local reply = { math.floor(clock() / 1000), '0' }
local function read(id, one)
  local due, at = occurrence(redis.call('HGET', messages, id))
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = id, string.match(one.text, '^[^\n]*'), due, at
  reply[n + 5] = redis.call('ZSCORE', pending, id) or ''
  reply[n + 6], reply[n + 7] = redis.call('ZSCORE', unack, id) and 1 or 0, one.tail
end

if ARGV[1] == 'one' then
  local one = definition(schedules, ARGV[2])
  if one then read(ARGV[2], one) end
else
  local found = redis.call('HSCAN', schedules, ARGV[2], 'COUNT', ARGV[3])
  reply[2] = found[1]
  for i = 1, #found[2], 2 do
    local one = definition(schedules, found[2][i])
    if one then read(found[2][i], one) end
  end
end
return reply

-- include bodies clock commit fields scores
-- Deletes dead messages.
--
-- KEYS   messages attempts errors dead records
-- ARGV   died before (ms; "" means now), limit (1 to 1000), then the ids (at most `limit`), or none for all that died
--        before
-- reply  purged, died before (ms; for the next call), 1 when more remain else 0
local messages, attempts, errors, dead, records = unpack(KEYS)
local before, limit = ARGV[1], tonumber(ARGV[2])

if before == '' then before = whole(math.floor(clock() / 1000)) end
local purged, back, seen = {}, { 'ZADD', dead }, {}
local function take(id, score)
  if not seen[id] then
    seen[id] = true
    purged[#purged + 1] = id
    back[#back + 1], back[#back + 2] = score, id
  end
end
if #ARGV > 2 then
  local ids = { unpack(ARGV, 3) }
  for i, score in ipairs(redis.call('ZMSCORE', dead, unpack(ids))) do
    if score then take(ids[i], score) end
  end
else
  local found = redis.call('ZRANGEBYSCORE', dead, '-inf', before, 'WITHSCORES', 'LIMIT', 0, limit)
  for i = 1, #found, 2 do take(found[i], found[i + 1]) end
end

local steps = {}
add(steps, 'ZREM', dead, purged, { back })
drop(steps, records, purged)
delete(steps, attempts, errors, messages, purged)
local failed = commit(steps)
if failed then return failed end
local first = head(dead)
return { #purged, tonumber(before), #ARGV == 2 and first and first <= tonumber(before) and 1 or 0 }

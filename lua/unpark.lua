-- include commit scores wake
-- Returns parked messages of a route that no longer has flows to their due times, and deletes the flow keys when no
-- message is parked.
--
-- KEYS   pending flows waiting flights gates slots rules
-- ARGV   wake channel, limit (1 to 1000)
-- reply  number of messages that were parked; 1 if more are, otherwise 0
local pending = KEYS[1]
local channel, limit = ARGV[1], tonumber(ARGV[2])

local found = redis.call('ZRANGEBYSCORE', pending, whole(PARKED), '+inf', 'WITHSCORES', 'LIMIT', '0', whole(limit))
local dues, back = { 'ZADD', pending }, { 'ZADD', pending }
for i = 1, #found, 2 do
  dues[i + 2], dues[i + 3] = whole((due_by(found[i + 1]))), found[i]
  back[i + 2], back[i + 3] = found[i + 1], found[i]
end
local more = #found / 2 == limit
-- The first write needs no memory: at maxmemory Redis refuses only the first write of a script.
local steps = { { { 'ZREM', pending, '' }, {} } }
write(steps, dues, { back })
if not more then steps[#steps + 1] = { { 'UNLINK', unpack(KEYS, 2) }, {} } end
local failed = commit(steps)
if failed then return failed end
if #found > 0 then wake(channel) end
return { #found / 2, more and 1 or 0 }

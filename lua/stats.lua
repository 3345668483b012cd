-- include clock scores
-- Statistics of one partition.
--
-- KEYS   pending unack dead paused bytes attempts
-- ARGV   horizons (ms)
-- reply  now us, why it is paused (pause.lua) or "", pending, of these due, unack, dead, next due ms or -1, bytes of the
--        bodies in pending and unack, messages in pending and unack that failed or crashed, then for each horizon the
--        messages that come due within it, overdue ones included
local pending, unack, dead, paused, bytes, attempts = unpack(KEYS)

local now = clock()
local reply = {
  now,
  redis.call('GET', paused) or '',
  redis.call('ZCARD', pending),
  redis.call('ZCOUNT', pending, '-inf', whole(math.floor(now / 1000))),
  redis.call('ZCARD', unack),
  redis.call('ZCARD', dead),
  head(pending) or -1,
  tonumber(redis.call('GET', bytes)) or 0,
  redis.call('HLEN', attempts),
}
for _, horizon in ipairs(ARGV) do
  reply[#reply + 1] = redis.call('ZCOUNT', pending, '-inf', whole(math.floor(now / 1000) + horizon))
end
return reply

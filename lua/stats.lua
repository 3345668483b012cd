-- include clock scores
-- Statistics of one partition.
--
-- KEYS   pending unack dead paused bytes
-- reply  now us, paused 0/1, pending, of these due, unack, dead, next due ms or -1, bytes of the bodies in pending and
--        unack
local pending, unack, dead, paused, bytes = unpack(KEYS)

local now = clock()
return {
  now,
  redis.call('GET', paused) and 1 or 0,
  redis.call('ZCARD', pending),
  redis.call('ZCOUNT', pending, '-inf', whole(math.floor(now / 1000))),
  redis.call('ZCARD', unack),
  redis.call('ZCARD', dead),
  head(pending) or -1,
  tonumber(redis.call('GET', bytes)) or 0,
}

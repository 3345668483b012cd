-- Wakes sleeping schedulers. This is the last call of a script. Its error is ignored: a lost wake-up only costs time.
--
-- On a cluster the channel ends with `:swake` and is a shard channel, which the servers do not forward to each other.
-- Before Redis 7 there are no shard channels.
local function wake(channel)
  if string.sub(channel, -6) == ':swake' and type(redis.pcall('SPUBLISH', channel, '')) == 'number' then return end
  redis.pcall('PUBLISH', channel, '')
end

-- Wakes sleeping schedulers. The last call of a script; its error is ignored, because a lost wake-up costs time only.
--
-- A channel of a cluster, which ends with `:swake`, is one of the slot: the servers need not pass it on to each other. Before
-- Redis 7 there are none such.
local function wake(channel)
  if string.sub(channel, -6) == ':swake' and type(redis.pcall('SPUBLISH', channel, '')) == 'number' then return end
  redis.pcall('PUBLISH', channel, '')
end

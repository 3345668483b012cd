-- Wakes sleeping schedulers. The last call of a script; its error is ignored, because a lost wake-up costs time only.
local function wake(channel)
  redis.pcall('PUBLISH', channel, '')
end

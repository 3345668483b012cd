-- The development clock, in microseconds since the epoch: that of Redis plus the time by which it was advanced.
-- `punctual dev` puts this text in place of lua/include/clock.lua.
local read_at
local function clock()
  if not read_at then
    local time = redis.call('TIME')
    local ahead = redis.call('GET', 'punctual:development:ahead')
    read_at = time[1] * 1000000 + time[2] + (tonumber(ahead) or 0)
  end
  return read_at
end

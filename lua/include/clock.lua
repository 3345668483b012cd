-- Microseconds since the epoch. Before Redis 7.2 TIME advances during a script, so it is read once.
local read_at
local function clock()
  if not read_at then
    local time = redis.call('TIME')
    read_at = time[1] * 1000000 + time[2]
  end
  return read_at
end

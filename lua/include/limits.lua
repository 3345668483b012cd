-- Returns the capacity that the limits in `settings` of a partition leave, and these limits: `messages` and `bytes` of
-- bodies that are pending or in flight, and the maximum `delay` in ms. math.huge means no limit.
local function quota(settings, pending, unack, bytes)
  local limits = { messages = math.huge, bytes = math.huge, delay = math.huge }
  local left = { messages = math.huge, bytes = math.huge, delay = math.huge }
  local messages, size, delay = string.match(settings, '^%w+ %d+ %d+ %d+ %d+ (%d+) (%d+) (%d+)')
  if not messages then return left, limits end
  if messages ~= '0' then
    limits.messages = tonumber(messages)
    left.messages = limits.messages - redis.call('ZCARD', pending) - redis.call('ZCARD', unack)
  end
  if size ~= '0' then
    limits.bytes = tonumber(size)
    left.bytes = limits.bytes - (tonumber(redis.call('GET', bytes)) or 0)
  end
  if delay ~= '0' then limits.delay, left.delay = tonumber(delay), tonumber(delay) end
  return left, limits
end

-- Returns nil and the value of `route` if that begins with `layout`: "<version> <partitions> <number> ". Otherwise
-- returns the error reply that the script must return: no instance reads a partition of another layout.
local function closed(route, layout)
  local settings = redis.call('GET', route)
  if not settings or string.sub(settings, 1, #layout) ~= layout then
    local text = 'PUNCTUAL unregistered the partition is open as `%s`, not `%s`'
    return redis.error_reply(string.format(text, settings or '', layout))
  end
  return nil, settings
end

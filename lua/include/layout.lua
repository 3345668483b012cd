-- The error reply for the script to return, unless `route` begins with `layout`: "<version> <partitions> <number> ".
-- A partition of another layout has no reader. The second value is that of `route`.
local function closed(route, layout)
  local settings = redis.call('GET', route)
  if not settings or string.sub(settings, 1, #layout) ~= layout then
    local text = 'PUNCTUAL unregistered the partition is open as `%s`, not `%s`'
    return redis.error_reply(string.format(text, settings or '', layout))
  end
  return nil, settings
end

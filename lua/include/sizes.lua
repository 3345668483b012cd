-- The sum of the sizes of the bodies of `ids`.
local function sizes(messages, ids)
  local sum = 0
  for _, id in ipairs(ids) do sum = sum + redis.call('HSTRLEN', messages, id) end
  return sum
end

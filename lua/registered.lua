-- include layout
-- Checks that routes are registered and their partitions open. HDEL of an absent field changes nothing, but a replica
-- refuses it.
--
-- KEYS   P:routes route...; one `route` for each partition of the first route in order, then of the next route
-- ARGV   for each route: route, version (with an "m" while messages are moved to its partitions), partitions
-- reply  for each route: its JSON, or nothing when it is not registered or a partition is not open
local routes = KEYS[1]
local reply, place = {}, 1
for i = 1, #ARGV, 3 do
  local route, version, partitions = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local known = redis.call('HGET', routes, route)
  for index = 0, partitions - 1 do
    place = place + 1
    if closed(KEYS[place], string.format('%s %s %d ', version, partitions, index)) then known = false end
  end
  reply[#reply + 1] = known
end
redis.call('HDEL', routes, '')
return reply

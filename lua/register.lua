-- include commit fields
-- Registers a route for producers and other instances, and opens its partitions for scheduling.
--
-- KEYS   P:routes route...; where the route is "", any hash in place of the first one
-- ARGV   route ("": only opens partitions), its JSON as it was read last ("": it was not read), its JSON from now on, then
--        for each partition its `route`
-- reply  created | kept | updated (its settings) | reopened (it was registered, a partition was not open), or the
--        registered JSON, if that is neither of the two: nothing written
--
-- `route` of a partition is "<version> <partitions> <number> <rest>". While messages are moved an "m" follows the version:
-- only those that look among the former partitions too may use it.
--
-- Writes nothing when nothing changed. At maxmemory it is not refused, because its first write needs no memory: an instance
-- must be able to start then, with other settings too.
local routes = KEYS[1]
local route, read, text = unpack(ARGV, 1, 3)
local BEFORE_KEYS, BEFORE_ARGV = 1, 3

local known = route == '' and text
if route ~= '' then known = redis.call('HGET', routes, route) end
if known and known ~= text and known ~= read then return known end
local steps, reopened = { { { 'HDEL', routes, '' }, {} } }, false
if known ~= text then
  add(steps, 'HSET', routes, { route, text }, restore(routes, { route }, { known }))
end
for n = 1, #KEYS - BEFORE_KEYS do
  local key, settings = KEYS[BEFORE_KEYS + n], ARGV[BEFORE_ARGV + n]
  local old = redis.call('GET', key)
  if old ~= settings then
    reopened = reopened or not old
    add(steps, 'SET', key, { settings }, { old and { 'SET', key, old } or { 'DEL', key } })
  end
end
local failed = #steps > 1 and commit(steps)
return failed or (not known and 'created' or reopened and 'reopened' or known == text and 'kept' or 'updated')

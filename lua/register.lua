-- include commit fields
-- Registers a route for producers and other instances, and opens its partitions for scheduling.
--
-- KEYS   P:routes route...; if the argument `route` is "", the first key is any hash
-- ARGV   route ("": only opens partitions), its JSON as it was last read ("": it was not read), its new JSON, then
--        the value of `route` for each partition
-- reply  created | kept | updated (its settings) | reopened (it was registered, a partition was not open), or the
--        registered JSON, if that differs from both arguments: nothing written
--
-- The value of `route` is "<version> <partitions> <number> <rest>". While messages are moved, an "m" follows the
-- version: only programs that search the former partitions too are allowed to use the partition.
--
-- Writes nothing if nothing changed. The first write needs no memory, so it is not refused at maxmemory: an instance
-- must be able to start on a full Redis, also with other settings.
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

-- include commit fields
-- Registers a route for producers and other instances, and opens its partitions for scheduling.
--
-- KEYS   P:routes route...
-- ARGV   route, version, partitions, its JSON, the rest of `route` after version, partitions and number
-- reply  created | kept | updated (its settings) | reopened (it was registered, a partition was not open), or the
--        registered JSON, if that has another version or number of partitions: nothing written
--
-- Writes nothing when nothing changed: an instance must be able to start at maxmemory.
local routes = KEYS[1]
local route, version, partitions, text, limits = unpack(ARGV)
local BEFORE_PARTITIONS = 1

local known = redis.call('HGET', routes, route)
if known and known ~= text then
  local ok, value = pcall(cjson.decode, known)
  if not ok or type(value) ~= 'table' then return known end
  if value.version ~= tonumber(version) or value.partitions ~= tonumber(partitions) then return known end
end
local steps, reopened = {}, false
if known ~= text then
  add(steps, 'HSET', routes, { route, text }, restore(routes, { route }, { known }))
end
for n = BEFORE_PARTITIONS + 1, #KEYS do
  local settings = string.format('%s %s %d %s', version, partitions, n - BEFORE_PARTITIONS - 1, limits)
  local old = redis.call('GET', KEYS[n])
  if old ~= settings then
    reopened = reopened or not old
    add(steps, 'SET', KEYS[n], { settings }, { old and { 'SET', KEYS[n], old } or { 'DEL', KEYS[n] } })
  end
end
return commit(steps) or (not known and 'created' or reopened and 'reopened' or known == text and 'kept' or 'updated')

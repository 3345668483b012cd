-- include commit fields
-- Registers a route for producers and other instances, and opens its partitions for scheduling.
--
-- KEYS   P:routes route...
-- ARGV   route, version, partitions, its former number of partitions while messages are moved from these, else "", its
--        JSON, the rest of `route` after version, partitions and number
-- reply  created | kept | updated (its settings) | reopened (it was registered, a partition was not open), or the
--        registered JSON, if that has another version, number of partitions or former one: nothing written
--
-- `route` of a partition is "<version> <partitions> <number> <rest>". While messages are moved an "m" follows the version:
-- only those that look among the former partitions too may use it.
--
-- Writes nothing when nothing changed: an instance must be able to start at maxmemory.
local routes = KEYS[1]
local route, version, partitions, former, text, limits = unpack(ARGV)
local BEFORE_PARTITIONS = 1
local FIRST_NUMBER = partitions * (partitions - 1) / 2

local known = redis.call('HGET', routes, route)
if known and known ~= text then
  local ok, value = pcall(cjson.decode, known)
  if not ok or type(value) ~= 'table' then return known end
  local same = value.version == tonumber(version) and value.partitions == tonumber(partitions)
  if not same or value.former ~= tonumber(former) then return known end
end
local steps, reopened = {}, false
if known ~= text then
  add(steps, 'HSET', routes, { route, text }, restore(routes, { route }, { known }))
end
for n = BEFORE_PARTITIONS + 1, #KEYS do
  local settings = string.format('%s%s %s %d %s', version, former == '' and '' or 'm', partitions, FIRST_NUMBER + n - BEFORE_PARTITIONS - 1, limits)
  local old = redis.call('GET', KEYS[n])
  if old ~= settings then
    reopened = reopened or not old
    add(steps, 'SET', KEYS[n], { settings }, { old and { 'SET', KEYS[n], old } or { 'DEL', KEYS[n] } })
  end
end
return commit(steps) or (not known and 'created' or reopened and 'reopened' or known == text and 'kept' or 'updated')

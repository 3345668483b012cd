-- Makes a route known, to producers and to other instances.
--
-- KEYS   P:routes
-- ARGV   route, version, partitions, its JSON
-- reply  created | kept | updated (its settings), or the JSON of another version or partition count
--
-- Writes nothing when nothing changed: an instance must be able to start at maxmemory.
local routes = KEYS[1]
local route, version, partitions, text = unpack(ARGV)

local known = redis.call('HGET', routes, route)
if known == text then return 'kept' end
if known then
  local ok, value = pcall(cjson.decode, known)
  if not ok or type(value) ~= 'table' or value.version ~= tonumber(version) or value.partitions ~= tonumber(partitions) then return known end
end
redis.call('HSET', routes, route, text)
return known and 'updated' or 'created'

-- Opens a partition for lua/produce.lua, which may read only keys of its own partition.
--
-- KEYS   route
-- ARGV   version, partitions, number of this partition, largest payload in bytes
-- reply  1
--
-- Writes nothing when nothing changed.
local text = string.format('%s %s %s %s', unpack(ARGV))
if redis.call('GET', KEYS[1]) ~= text then redis.call('SET', KEYS[1], text) end
return 1

-- Writes what is there anyhow: what was written before, by any client, has a smaller offset of replication than this.
--
-- KEYS   route
-- ARGV   none
-- reply  1 | 0 the partition is not open: nothing was written
local route = KEYS[1]

local settings = redis.call('GET', route)
if not settings then return 0 end
redis.call('SET', route, settings)
return 1

-- Writes the value of `route` again. Earlier writes of any client have smaller replication offsets than this write.
--
-- KEYS   route
-- ARGV   none
-- reply  1 | 0 the partition is not open: nothing was written
local route = KEYS[1]

local settings = redis.call('GET', route)
if not settings then return 0 end
redis.call('SET', route, settings)
return 1

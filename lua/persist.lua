-- Removes the expiry from bodies of other programs, so that none expires before its message is moved.
--
-- KEYS   body...
-- reply  number of bodies that had an expiry
local count = 0
for _, key in ipairs(KEYS) do count = count + redis.call('PERSIST', key) end
return count

-- Removes the expiry of values of other programs whose messages are not moved yet.
--
-- KEYS   body...
-- reply  how many had one
local count = 0
for _, key in ipairs(KEYS) do count = count + redis.call('PERSIST', key) end
return count

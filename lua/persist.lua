-- Takes the expiry off other programs' values that are still waited for.
--
-- KEYS   body...
-- reply  how many had one
local count = 0
for _, key in ipairs(KEYS) do count = count + redis.call('PERSIST', key) end
return count

-- Finds the commands of the scripts that the user is denied: calls each in a form that changes nothing.
--
-- KEYS   rights; it is never written
-- ARGV   none
-- reply  the names of the denied commands
local key = KEYS[1]
-- The forms of SET and HSET are syntax errors, which Redis detects after it has checked the right.
local FORMS = {
  { 'TIME' }, { 'GET', key }, { 'SET', key, '', 'XX', 'NX' }, { 'HGET', key, '' }, { 'HGETALL', key }, { 'HMGET', key, '' },
  { 'HSET', key, '', '', '' }, { 'HDEL', key, '' }, { 'HLEN', key }, { 'HSTRLEN', key, '' }, { 'ZADD', key, 'XX', '0', '' },
  { 'ZREM', key, '' }, { 'ZREMRANGEBYRANK', key, '1', '0' }, { 'ZREMRANGEBYSCORE', key, '1', '0' }, { 'ZCARD', key },
  { 'ZCOUNT', key, '0', '0' }, { 'ZSCORE', key, '' }, { 'ZMSCORE', key, '' }, { 'ZRANGE', key, '0', '0' },
  { 'ZRANGEBYSCORE', key, '0', '0' }, { 'ZRANGEBYLEX', key, '-', '+' }, { 'ZLEXCOUNT', key, '-', '+' },
  { 'HSCAN', key, '0' },
}

-- Parts of the reply to a denied command, by release. A renamed command is unknown.
local DENIALS = {
  'NOPERM', "The user executing the script can't", 'ACL failure in script', 'Unknown Redis command', 'Unknown command',
}
local function is_denied(reply)
  local text = type(reply) == 'table' and reply.err
  for _, part in ipairs(text and DENIALS or {}) do
    if string.find(text, part, 1, true) then return true end
  end
end

local denied = {}
local exists = redis.pcall('EXISTS', key)
if is_denied(exists) then
  denied[1] = 'exists'
elseif type(exists) == 'table' and exists.err then
  return exists
elseif exists == 0 then
  FORMS[#FORMS + 1], FORMS[#FORMS + 2] = { 'DEL', key }, { 'UNLINK', key }
end
for _, form in ipairs(FORMS) do
  if is_denied(redis.pcall(unpack(form))) then denied[#denied + 1] = string.lower(form[1]) end
end
return denied

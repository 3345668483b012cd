-- Into a list on this Redis, exactly once: pushed and gone in one step.
--
-- KEYS   unack messages attempts errors list
-- ARGV   for each lease: id, token, value
-- reply  for each lease: 1 done | 0 stale; error `PUNCTUAL list <type>` when the key holds something else
local unack, messages, attempts, errors, list = unpack(KEYS)

local kind = redis.call('TYPE', list).ok
if kind ~= 'none' and kind ~= 'list' then
  return redis.error_reply('PUNCTUAL list the key holds a ' .. kind)
end
local ids, tokens = {}, {}
for i = 1, #ARGV, 3 do
  ids[#ids + 1] = ARGV[i]
  tokens[#tokens + 1] = ARGV[i + 1]
end
local reply = held(unack, ids, tokens)
local gone, back, values = {}, { 'ZADD', unack }, {}
for i, id in ipairs(ids) do
  if reply[i] == 1 then
    gone[#gone + 1] = id
    back[#back + 1] = tokens[i]
    back[#back + 1] = id
    values[#values + 1] = ARGV[3 * i]
  end
end

local steps = {}
add(steps, 'ZREM', unack, gone, { back })
add(steps, 'RPUSH', list, values, { { 'LTRIM', list, 0, -(#values + 1) } })
forget(steps, attempts, errors, messages, gone)
return commit(steps) or reply

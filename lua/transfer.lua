-- include bodies bytes commit leases remembered
-- Delivers messages to lists on this Redis, exactly once: pushed and completed in one script.
--
-- KEYS   unack messages attempts errors remembered records bytes list...
-- ARGV   how long to remember it (ms), how many at most, then for each lease: id, token, bytes of its body,
--        which of the lists (from 1), value
-- reply  for each lease: 1 done | 0 stale | the type of the list's key, if it is no list: still claimed
local BEFORE_LISTS = 7
local unack, messages, attempts, errors, remembered, records, bytes = unpack(KEYS, 1, BEFORE_LISTS)
local keep, max = tonumber(ARGV[1]), tonumber(ARGV[2])

local EACH = 5
local ids, tokens = {}, {}
for i = 3, #ARGV, EACH do
  ids[#ids + 1] = ARGV[i]
  tokens[#tokens + 1] = ARGV[i + 1]
end
local reply = held(unack, ids, tokens)
local kinds, values = {}, {}
for n = BEFORE_LISTS + 1, #KEYS do
  kinds[n], values[n] = redis.call('TYPE', KEYS[n]).ok, {}
end
local completed, back, left = {}, { 'ZADD', unack }, 0
for i, id in ipairs(ids) do
  if reply[i] == 1 then
    local place = EACH * i - 2
    local n = BEFORE_LISTS + tonumber(ARGV[place + 3])
    if kinds[n] == 'none' or kinds[n] == 'list' then
      completed[#completed + 1] = id
      back[#back + 1] = tokens[i]
      back[#back + 1] = id
      left = left + ARGV[place + 2]
      values[n][#values[n] + 1] = ARGV[place + 4]
    else
      reply[i] = kinds[n]
    end
  end
end

local steps = {}
add(steps, 'ZREM', unack, completed, { back })
for n = BEFORE_LISTS + 1, #KEYS do
  add(steps, 'RPUSH', KEYS[n], values[n], { { 'LTRIM', KEYS[n], 0, -(#values[n] + 1) } })
end
grow(steps, bytes, -left)
remember(steps, remembered, records, completed, false, keep, max)
delete(steps, attempts, errors, messages, completed)
return commit(steps) or reply

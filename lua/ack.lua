-- Confirmed: the message is gone.
--
-- KEYS   unack messages attempts errors remembered records
-- ARGV   how long to remember it (ms), how many at most, then for each lease: id, token
-- reply  for each lease: 1 done | 0 stale
local unack, messages, attempts, errors, remembered, records = unpack(KEYS)
local keep, max = tonumber(ARGV[1]), tonumber(ARGV[2])

local ids, tokens = {}, {}
for i = 3, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
  tokens[#tokens + 1] = ARGV[i + 1]
end
local reply = held(unack, ids, tokens)
local gone, back = {}, { 'ZADD', unack }
for i, id in ipairs(ids) do
  if reply[i] == 1 then
    gone[#gone + 1] = id
    back[#back + 1] = tokens[i]
    back[#back + 1] = id
  end
end

local steps = {}
add(steps, 'ZREM', unack, gone, { back })
remember(steps, remembered, records, gone, false, keep, max)
forget(steps, attempts, errors, messages, gone)
return commit(steps) or reply

-- Confirmed: the message is gone.
--
-- KEYS   unack messages attempts errors
-- ARGV   for each lease: id, token
-- reply  for each lease: 1 done | 0 stale
local unack, messages, attempts, errors = unpack(KEYS)

local ids, tokens = {}, {}
for i = 1, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
  tokens[#tokens + 1] = ARGV[i + 1]
end
local scores = redis.call('ZMSCORE', unack, unpack(ids))
local reply, gone, back = {}, {}, { 'ZADD', unack }
for i, id in ipairs(ids) do
  local current = scores[i] and tonumber(scores[i]) == tonumber(tokens[i])
  reply[i] = current and 1 or 0
  if current then
    gone[#gone + 1] = id
    back[#back + 1] = tokens[i]
    back[#back + 1] = id
  end
end

local steps = {}
add(steps, 'ZREM', unack, gone, { back })
forget(steps, attempts, errors, messages, gone)
return commit(steps) or reply

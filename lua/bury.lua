-- Given up: dead, with the reason.
--
-- KEYS   unack dead attempts errors
-- ARGV   for each lease: id, token, 1 when the attempt counts else 0, "<reason>: <error>"
-- reply  for each lease: 1 done | 0 stale
local unack, dead, attempts, errors = unpack(KEYS)

local now = whole(math.floor(clock() / 1000))
local ids, tokens = {}, {}
for i = 1, #ARGV, 4 do
  ids[#ids + 1] = ARGV[i]
  tokens[#tokens + 1] = ARGV[i + 1]
end
local reply = held(unack, ids, tokens)
local values = redis.call('HMGET', attempts, unpack(ids))
local moved, back, graves, failures, texts, old = {}, { 'ZADD', unack }, {}, {}, {}, {}
for i, id in ipairs(ids) do
  if reply[i] == 1 then
    local at, n = 4 * i - 3, #moved + 1
    moved[n], old[n] = id, values[i]
    back[#back + 1], back[#back + 2] = tokens[i], id
    graves[2 * n - 1], graves[2 * n] = now, id
    failures[n] = counts(values[i]) + tonumber(ARGV[at + 2])
    texts[2 * n - 1], texts[2 * n] = id, ARGV[at + 3]
  end
end

local steps = {}
add(steps, 'ZREM', unack, moved, { back })
add(steps, 'ZADD', dead, graves, { { 'ZREM', dead, unpack(moved) } })
count(steps, attempts, moved, failures, old)
add(steps, 'HSET', errors, texts, {})
return commit(steps) or reply

-- Given up: dead, with the reason.
--
-- KEYS   unack dead attempts errors
-- ARGV   for each lease: id, token, 1 when the attempt counts else 0, "<reason>: <error>"
-- reply  for each lease: 1 done | 0 stale
local unack, dead, attempts, errors = unpack(KEYS)

local now = whole(math.floor(clock() / 1000))
local ids = {}
for i = 1, #ARGV, 4 do ids[#ids + 1] = ARGV[i] end
local scores = redis.call('ZMSCORE', unack, unpack(ids))
local old = redis.call('HMGET', attempts, unpack(ids))
local reply, moved, back, graves, tries, texts, old_tries = {}, {}, { 'ZADD', unack }, {}, {}, {}, {}
for i, id in ipairs(ids) do
  local at = 4 * i - 3
  local token = ARGV[at + 1]
  local current = scores[i] and tonumber(scores[i]) == tonumber(token)
  reply[i] = current and 1 or 0
  if current then
    local n = #moved + 1
    moved[n], old_tries[n] = id, old[i]
    back[#back + 1], back[#back + 2] = token, id
    graves[2 * n - 1], graves[2 * n] = now, id
    tries[2 * n - 1], tries[2 * n] = id, (counts(old[i]) + tonumber(ARGV[at + 2])) .. ' 0'
    texts[2 * n - 1], texts[2 * n] = id, ARGV[at + 3]
  end
end

local steps = {}
add(steps, 'ZREM', unack, moved, { back })
add(steps, 'ZADD', dead, graves, { { 'ZREM', dead, unpack(moved) } })
add(steps, 'HSET', attempts, tries, restore(attempts, moved, old_tries))
add(steps, 'HSET', errors, texts, {})
return commit(steps) or reply

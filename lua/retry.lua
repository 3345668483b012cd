-- Failed: the attempt is counted, and the message is due again later.
--
-- KEYS   pending unack attempts errors
-- ARGV   wake channel, then for each lease: id, token, delay ms, error
-- reply  for each lease: 1 done | 0 stale
local pending, unack, attempts, errors = unpack(KEYS)
local channel = ARGV[1]

local now = math.floor(clock() / 1000)
local earliest = head(pending)
local ids, tokens = {}, {}
for i = 2, #ARGV, 4 do
  ids[#ids + 1] = ARGV[i]
  tokens[#tokens + 1] = ARGV[i + 1]
end
local reply = held(unack, ids, tokens)
local values = redis.call('HMGET', attempts, unpack(ids))
local moved, back, dues, failures, texts, old = {}, { 'ZADD', unack }, {}, {}, {}, {}
local wake_up = false
for i, id in ipairs(ids) do
  if reply[i] == 1 then
    local at, n = 4 * i - 2, #moved + 1
    local due = now + tonumber(ARGV[at + 2])
    moved[n], old[n] = id, values[i]
    back[#back + 1], back[#back + 2] = tokens[i], id
    dues[2 * n - 1], dues[2 * n] = whole(due), id
    failures[n] = counts(values[i]) + 1
    texts[2 * n - 1], texts[2 * n] = id, ARGV[at + 3]
    if not earliest or due < earliest then wake_up = true end
  end
end

local steps = {}
add(steps, 'ZREM', unack, moved, { back })
add(steps, 'ZADD', pending, dues, { { 'ZREM', pending, unpack(moved) } })
count(steps, attempts, moved, failures, old)
add(steps, 'HSET', errors, texts, {})
local failed = commit(steps)
if failed then return failed end
if wake_up then wake(channel) end
return reply

-- Failed: the attempt is counted, and the message is due again later.
--
-- KEYS   pending unack attempts errors
-- ARGV   wake channel, then for each lease: id, token, delay ms, error
-- reply  for each lease: 1 done | 0 stale
local pending, unack, attempts, errors = unpack(KEYS)
local channel = ARGV[1]

local now = math.floor(clock() / 1000)
local earliest = head(pending)
local ids = {}
for i = 2, #ARGV, 4 do ids[#ids + 1] = ARGV[i] end
local scores = redis.call('ZMSCORE', unack, unpack(ids))
local old = redis.call('HMGET', attempts, unpack(ids))
local reply, moved, back, dues, tries, texts, old_tries = {}, {}, { 'ZADD', unack }, {}, {}, {}, {}
local wake_up = false
for i, id in ipairs(ids) do
  local at = 4 * i - 2
  local token = ARGV[at + 1]
  local current = scores[i] and tonumber(scores[i]) == tonumber(token)
  reply[i] = current and 1 or 0
  if current then
    local n, due = #moved + 1, now + tonumber(ARGV[at + 2])
    moved[n], old_tries[n] = id, old[i]
    back[#back + 1], back[#back + 2] = token, id
    dues[2 * n - 1], dues[2 * n] = whole(due), id
    -- A settled claim was no crash.
    tries[2 * n - 1], tries[2 * n] = id, (counts(old[i]) + 1) .. ' 0'
    texts[2 * n - 1], texts[2 * n] = id, ARGV[at + 3]
    if not earliest or due < earliest then wake_up = true end
  end
end

local steps = {}
add(steps, 'ZREM', unack, moved, { back })
add(steps, 'ZADD', pending, dues, { { 'ZREM', pending, unpack(moved) } })
add(steps, 'HSET', attempts, tries, restore(attempts, moved, old_tries))
add(steps, 'HSET', errors, texts, {})
local failed = commit(steps)
if failed then return failed end
if wake_up then wake(channel) end
return reply

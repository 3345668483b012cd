-- Given back: pending as if it had never been claimed.
--
-- KEYS   pending unack attempts
-- ARGV   wake channel, then for each lease: id, token, score that it had in pending
-- reply  for each lease: 1 done | 0 stale
local pending, unack, attempts = unpack(KEYS)
local channel = ARGV[1]

local earliest = head(pending)
local ids, tokens = {}, {}
for i = 2, #ARGV, 3 do
  ids[#ids + 1] = ARGV[i]
  tokens[#tokens + 1] = ARGV[i + 1]
end
local reply = held(unack, ids, tokens)
local values = redis.call('HMGET', attempts, unpack(ids))
local moved, back, dues, failures, old = {}, { 'ZADD', unack }, {}, {}, {}
local wake_up = false
for i, id in ipairs(ids) do
  if reply[i] == 1 then
    local score, n = ARGV[3 * i + 1], #moved + 1
    moved[n], old[n] = id, values[i]
    back[#back + 1], back[#back + 2] = tokens[i], id
    dues[#dues + 1], dues[#dues + 2] = score, id
    failures[n] = (counts(values[i]))
    if not earliest or tonumber(score) < earliest then wake_up = true end
  end
end

local steps = {}
add(steps, 'ZREM', unack, moved, { back })
count(steps, attempts, moved, failures, old)
add(steps, 'ZADD', pending, dues, {})
local failed = commit(steps)
if failed then return failed end
if wake_up then wake(channel) end
return reply

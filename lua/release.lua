-- Given back: pending as if it had never been claimed.
--
-- KEYS   pending unack attempts
-- ARGV   wake channel, then for each lease: id, token, score that it had in pending
-- reply  for each lease: 1 done | 0 stale
local pending, unack, attempts = unpack(KEYS)
local channel = ARGV[1]

local earliest = head(pending)
local ids = {}
for i = 2, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local scores = redis.call('ZMSCORE', unack, unpack(ids))
local old = redis.call('HMGET', attempts, unpack(ids))
local reply, moved, back, dues = {}, {}, { 'ZADD', unack }, {}
-- A settled claim was no crash: `failures 0` where attempts failed before, nothing where none did.
local kept, kept_ids, kept_old, cleared, cleared_old = {}, {}, {}, {}, {}
local wake_up = false
for i, id in ipairs(ids) do
  local token, score = ARGV[3 * i], ARGV[3 * i + 1]
  local current = scores[i] and tonumber(scores[i]) == tonumber(token)
  reply[i] = current and 1 or 0
  if current then
    moved[#moved + 1] = id
    back[#back + 1], back[#back + 2] = token, id
    dues[#dues + 1], dues[#dues + 2] = score, id
    local failures, crashes = counts(old[i])
    if failures > 0 and crashes > 0 then
      kept[#kept + 1], kept[#kept + 2] = id, failures .. ' 0'
      kept_ids[#kept_ids + 1], kept_old[#kept_old + 1] = id, old[i]
    elseif crashes > 0 then
      cleared[#cleared + 1], cleared_old[#cleared_old + 1] = id, old[i]
    end
    if not earliest or tonumber(score) < earliest then wake_up = true end
  end
end

local steps = {}
add(steps, 'ZREM', unack, moved, { back })
add(steps, 'HSET', attempts, kept, restore(attempts, kept_ids, kept_old))
add(steps, 'HDEL', attempts, cleared, restore(attempts, cleared, cleared_old))
add(steps, 'ZADD', pending, dues, {})
local failed = commit(steps)
if failed then return failed end
if wake_up then wake(channel) end
return reply

-- include attempts clock scores
-- Statistics of one partition.
--
-- KEYS   pending unack dead paused bytes attempts messages [gates]
-- ARGV   horizons (ms)
-- reply  now us, value of `paused` (pause.lua) or "", number pending, number of these due, number in unack, number
--        dead, next due ms or -1, bytes of the bodies in pending and unack, number of messages in pending and unack
--        that failed or crashed, earliest due time (ms) of the first messages in pending, or since when a flow could
--        send a parked message, or -1, due time and end of the lease (ms) of the message that was claimed longest after
--        its due time, among the first ones in unack, or -1 and -1, number parked for their flow, number of flows for which
--        messages are parked, then for each horizon the number of messages that become due within it, overdue ones
--        included, parked ones not
local pending, unack, dead, paused, bytes, attempts, messages, gates = unpack(KEYS)
-- Messages that are read to find the oldest, and maximum bytes of their bodies. The first is read at any size.
local MAX_SEEN = 50
local MAX_BYTES = 262144
-- As MAX_SEEN, in unack.
local MAX_CLAIMED = 8
-- A deferral is shorter than this, in ms: 30 s and up to a quarter of that at random. Messages with later scores were
-- not deferred.
local MAX_DEFERRED = 40000

-- The due time in the body of a message that has not failed, and the bytes that may be read after that. `is_first`: it is
-- read at any size.
local function due_inside(id, left, is_first)
  if counts(redis.call('HGET', attempts, id)) > 0 then return nil, left end
  left = left - redis.call('HSTRLEN', messages, id)
  if left < 0 and not is_first then return nil, left end
  local body = redis.call('HGET', messages, id)
  return body and #body >= 17 and struct.unpack('>I8', body, 2) or nil, math.max(0, left)
end

-- The score of a message that was deferred or recovered is later than its due time, which is in the body. A retry is
-- due at its score.
local function oldest(now)
  local found = redis.call('ZRANGE', pending, '0', whole(MAX_SEEN - 1), 'WITHSCORES')
  local since, left = tonumber(found[2]) or -1, MAX_BYTES
  for i = 1, #found, 2 do
    local score = tonumber(found[i + 1])
    if score > now + MAX_DEFERRED then break end
    local due
    due, left = due_inside(found[i], left, i == 1)
    if left < 0 then break end
    if (due or score) < since then since = due or score end
  end
  return since
end

-- A message that is claimed and returned again and again waits too. A route with flows has no such time: due messages
-- wait there for their flow.
local function latest_claimed(in_unack)
  local latest, lease_end, left = -1, -1, MAX_BYTES
  if gates or in_unack == 0 then return latest, lease_end end
  local found = redis.call('ZRANGE', unack, '0', whole(MAX_CLAIMED - 1), 'WITHSCORES')
  for i = 1, #found, 2 do
    local due
    due, left = due_inside(found[i], left, i == 1)
    if left < 0 then break end
    local ends = math.floor(tonumber(found[i + 1]) / 1000)
    if due and (latest < 0 or ends - due > lease_end - latest) then latest, lease_end = due, ends end
  end
  return latest, lease_end
end

local now = clock()
local next_due = head(pending)
if next_due and select(2, due_by(next_due)) then next_due = nil end
-- Since when a flow with parked messages could send one.
local since = oldest(math.floor(now / 1000))
local gate = gates and head(gates)
if gate and gate <= math.floor(now / 1000) and (since < 0 or gate < since) then since = gate end
local in_unack = redis.call('ZCARD', unack)
local claimed, lease_end = latest_claimed(in_unack)
local reply = {
  now,
  redis.call('GET', paused) or '',
  redis.call('ZCARD', pending),
  redis.call('ZCOUNT', pending, '-inf', whole(math.floor(now / 1000))),
  in_unack,
  redis.call('ZCARD', dead),
  next_due or -1,
  tonumber(redis.call('GET', bytes)) or 0,
  redis.call('HLEN', attempts),
  since,
  claimed,
  lease_end,
  redis.call('ZCOUNT', pending, whole(PARKED), '+inf'),
  gates and redis.call('ZCARD', gates) or 0,
}
for _, horizon in ipairs(ARGV) do
  reply[#reply + 1] = redis.call('ZCOUNT', pending, '-inf', whole(math.floor(now / 1000) + horizon))
end
return reply

-- include clock scores
-- Finds the next time at which a message is due, for the development clock.
--
-- KEYS   the time by which the clock is ahead, then for each partition: pending unack paused gates outbox
-- ARGV   for each partition: when its route opens (ms), 0 while it is open
-- reply  now us, us by which the clock is ahead, next due ms after now or -1, then the numbers (from 1) of the partitions
--        with messages that are due or in flight, or with dead letters that can be forwarded
--
-- A dead letter that the other route did not take is tried again at the next stop: it is not a stop of its own.
local now, next_due = clock(), -1
local reply = { now, tonumber(redis.call('GET', KEYS[1])) or 0, -1 }
for i = 1, #ARGV do
  local pending, unack, paused, gates, outbox = unpack(KEYS, 5 * i - 3, 5 * i + 1)
  local letter = head(outbox)
  local is_busy = redis.call('ZCARD', unack) > 0 or (letter and letter * 1000 <= now)
  if redis.call('EXISTS', paused) == 0 then
    local due, is_parked = head(pending), false
    if due then due, is_parked = due_by(due) end
    if is_parked then due = nil end
    -- A parked message leaves when a claim looks at its flow.
    local gate = head(gates)
    if gate and gate < PARKED and (not due or gate < due) then due = gate end
    if due then due = math.max(due, tonumber(ARGV[i])) end
    if due and due * 1000 <= now then
      is_busy = true
    elseif due and due < PARKED - 1 and (next_due < 0 or due < next_due) then
      next_due = due
    end
  end
  if is_busy then reply[#reply + 1] = i end
end
reply[3] = next_due
return reply

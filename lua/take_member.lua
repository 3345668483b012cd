-- Moves due members of another program's sorted set into the queue: the member is the payload.
--
-- KEYS   pending unack messages dead errors paused remembered source
-- ARGV   wake channel, due messages that may wait in pending, largest payload and most bytes of all bodies, ms in 1 of
--        a score, then for each member: id, member, metadata as JSON
-- reply  for each member: taken | invalid (a dead letter now) | gone | conflict (its id is live) | left (no room)
local source = KEYS[8]
local queue = {
  pending = KEYS[1], unack = KEYS[2], messages = KEYS[3], dead = KEYS[4], errors = KEYS[5], paused = KEYS[6],
  remembered = KEYS[7],
}
local channel, unit = ARGV[1], tonumber(ARGV[5])
local limits = {
  now = math.floor(clock() / 1000), room = tonumber(ARGV[2]), payload = tonumber(ARGV[3]), bytes = tonumber(ARGV[4]),
}

local entries, members = {}, {}
for i = 6, #ARGV, 3 do
  entries[#entries + 1] = { id = ARGV[i], metadata = ARGV[i + 2] }
  members[#members + 1] = ARGV[i + 1]
end
local scores = redis.call('ZMSCORE', source, unpack(members))
for i, entry in ipairs(entries) do
  local due = scores[i] and due_ms(tonumber(scores[i]), unit)
  if due and due <= limits.now then entry.due = due end
end

local verdicts, steps, taken, wake_up = take(queue, limits, entries, function(i) return members[i] end)
leave(steps, source, taken, members, scores)
local failed = commit(steps)
if failed then return failed end
if wake_up then wake(channel) end
return verdicts

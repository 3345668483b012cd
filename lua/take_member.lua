-- include commit external taking wake
-- Moves due members of a sorted set of another program into the queue: the member is the payload.
--
-- KEYS   pending unack messages dead errors paused route remembered bytes [outbox] [history] [flow] source
-- ARGV   wake channel, required prefix of `route` ("<version> <partitions> <number> "), maximum number of due messages
--        in pending, maximum bytes of a payload and of all bodies, the optional keys that are there ("outbox", "history", "flow"),
--        limits of the history ("": none; see history.lua), ms in a
--        unit of a score, then for each member: id, member, metadata as JSON
-- reply  for each member: taken | invalid: <reason> (now a dead letter) | gone (absent or not due) | conflict (its id
--        is live) | left (no room, or a limit of the route); error `PUNCTUAL unregistered <text>`, nothing written,
--        when the partition is not open
local source, unit = KEYS[OWN_KEYS + 1], tonumber(ARGV[OWN_ARGUMENTS + 1])

local entries, members = {}, {}
for i = OWN_ARGUMENTS + 2, #ARGV, 3 do
  entries[#entries + 1] = { id = ARGV[i], metadata = ARGV[i + 2] }
  members[#members + 1] = ARGV[i + 1]
end
local scores = redis.call('ZMSCORE', source, unpack(members))
for i, entry in ipairs(entries) do
  if scores[i] then entry.due, entry.problem = read_score(tonumber(scores[i]), unit, limits.now) end
end

local function weigh(i)
  local size = #members[i]
  if size > MAX_CONTENT then
    return 0, 'the member takes ' .. size .. ' bytes, at most ' .. MAX_CONTENT .. ' can be kept: it was dropped'
  end
  return size, entries[i].problem, members[i]
end

local verdicts, steps, taken, wake_up = take(entries, weigh, function(i) return members[i] end)
leave(steps, source, taken, members, scores)
local failed = commit(steps)
if failed then return failed end
if wake_up then wake(channel) end
return verdicts

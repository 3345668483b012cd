-- include clock commit failures flow groups history layout optional outbox revival scores
-- Stores messages as dead letters, with the reason: those that a source could not read, and occurrences of schedules.
--
-- KEYS   messages dead errors pending unack route remembered groups grouped [outbox] [history] [flow]
-- ARGV   required prefix of `route`, number of failed attempts, limits of the history ("": none; see history.lua), then for each message: id, "<reason>: <error>", body after the times, its group
--        ("": none), its flow if there are flow keys
-- reply  for each message: 1 written | 0 its id is live, nothing written; error `PUNCTUAL unregistered <text>` when the
--        partition is not open: the caller must register the route first
-- See src/message/codec.rs.
local VERSION = 2
local messages, dead, errors, pending, unack, route, remembered = unpack(KEYS)

local groups = group_keys(KEYS, 8)
local outbox, history, flow = optional_keys(KEYS, 10, ARGV[3])
local FIRST, EACH = 4, flow and 5 or 4

local refusal = closed(route, ARGV[1])
if refusal then return refusal end

local now = math.floor(clock() / 1000)
local ids, live = {}, {}
for i = FIRST, #ARGV, EACH do ids[#ids + 1] = ARGV[i] end
for _, set in ipairs({ pending, unack, dead }) do
  for i, score in ipairs(redis.call('ZMSCORE', set, unpack(ids))) do
    if score then live[ids[i]] = true end
  end
end

local reply, buried, names, group_of, bodies, dead_scores, texts, entries = {}, {}, {}, {}, {}, {}, {}, {}
for i, id in ipairs(ids) do
  if live[id] then
    reply[i] = 0
  else
    reply[i], live[id] = 1, true
    local n = #buried + 1
    buried[n] = id
    local at = FIRST + (i - 1) * EACH
    if ARGV[at + 3] ~= '' then group_of[id] = ARGV[at + 3] end
    if flow then names[n] = ARGV[at + 4] end
    bodies[2 * n - 1], bodies[2 * n] = id, struct.pack('>BI8I8', VERSION, now, now) .. ARGV[at + 2]
    dead_scores[2 * n - 1], dead_scores[2 * n] = whole(now), id
    texts[2 * n - 1], texts[2 * n] = id, failure(now, ARGV[2], ARGV[at + 1])
    if history then
      entries[n] = entry_of('dead', id, tonumber(ARGV[2]), bodies[2 * n], ARGV[at + 1])
    end
  end
end

local steps = {}
if #buried > 0 then
  add(steps, 'HSET', messages, bodies, { { 'HDEL', messages, unpack(buried) } })
  revive(steps, remembered, buried)
  -- The ids are new, and have no group.
  join_groups(steps, groups, group_of, false)
  if flow then number_flows(steps, flow, buried, names) end
  add(steps, 'ZADD', dead, dead_scores, { { 'ZREM', dead, unpack(buried) } })
  post(steps, outbox, dead_scores)
  keep_ends(steps, history, buried, entries, now)
  add(steps, 'HSET', errors, texts, {})
end
return commit(steps) or reply

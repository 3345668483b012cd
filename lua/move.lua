-- include bytes commit fields groups layout members scores wake
-- Moves ids from a partition of the former number of partitions of a route to a partition of the present number.
--
-- KEYS   route (pending unack messages attempts errors dead remembered records bytes schedules groups grouped)... [outbox] [outbox]; the
--        first keys in brackets are of the partition that the ids leave, the others and `route` of that to which they belong
-- ARGV   wake channel, required prefix of `route`, maximum bytes of bodies (the first one is moved at any size), ids
-- reply  for each id: moved | absent | left (too many bytes) | in_flight (it must be settled first) | conflict (it is
--        live in both partitions), then its due time in ms if it is in flight, otherwise 0; error
--        `PUNCTUAL unregistered <text>`, nothing written, when the partition is not open
local EACH, FIRST = 12, 4
local route = KEYS[1]
local pending, unack, messages, attempts, errors, dead, remembered, records, bytes, schedules =
  unpack(KEYS, 2, EACH + 1)
local groups, to_groups = group_keys(KEYS, EACH), group_keys(KEYS, 2 * EACH)
local to_pending, to_unack, to_messages, to_attempts, to_errors, to_dead, to_remembered, to_records, to_bytes, to_schedules =
  unpack(KEYS, EACH + 2)
local channel, layout, max_bytes = ARGV[1], ARGV[2], tonumber(ARGV[3])

local refusal = closed(route, layout)
if refusal then return refusal end
-- A key of a wrong type causes an error here, before the first write.
local hashes = {
  { attempts, to_attempts }, { errors, to_errors }, { records, to_records }, { schedules, to_schedules },
  { messages, to_messages },
}
for _, pair in ipairs(hashes) do
  -- HSTRLEN checks `messages` below.
  if pair[1] ~= messages then redis.call('HLEN', pair[1]) end
  redis.call('HLEN', pair[2])
end
local has_groups = redis.call('EXISTS', groups.groups) == 1
if has_groups then table.insert(hashes, 1, { groups.groups, to_groups.groups }) end
redis.call('ZCARD', to_remembered)

local ids = { unpack(ARGV, FIRST) }
local function scores(set) return redis.call('ZMSCORE', set, unpack(ids)) end
local waits, flies, died, ended = scores(pending), scores(unack), scores(dead), scores(remembered)
local others = { scores(to_pending), scores(to_unack), scores(to_dead) }

local function due_inside(id)
  local body = redis.call('HGET', messages, id)
  return body and #body >= 17 and struct.unpack('>I8', body, 2) or 0
end

local reply, moved, seen = {}, {}, {}
local left, grown = max_bytes, 0
for i, id in ipairs(ids) do
  local status, due = 'moved', 0
  if flies[i] then
    status, due = 'in_flight', due_inside(id)
  elseif seen[id] or not (waits[i] or died[i] or ended[i]) then
    status = 'absent'
  elseif others[1][i] or others[2][i] or others[3][i] then
    status = 'conflict'
  else
    local size = redis.call('HSTRLEN', messages, id)
    if size > left and #moved > 0 then
      status = 'left'
    else
      left = left - size
      if waits[i] then grown = grown + size end
      moved[#moved + 1], seen[id] = i, true
    end
  end
  reply[2 * i - 1], reply[2 * i] = status, due
end
if #moved == 0 then return reply end

local names = {}
for n, i in ipairs(moved) do names[n] = ids[i] end
local steps, cleared = {}, {}

-- Moves members of a sorted set with their scores. A write that needs no memory comes first: at maxmemory Redis refuses
-- only the first write of a script.
local added = {}
local function carry(set, to_set, all)
  local members, pairs_of, there = {}, {}, {}
  for _, i in ipairs(moved) do
    if all[i] then
      members[#members + 1] = ids[i]
      pairs_of[#pairs_of + 1], pairs_of[#pairs_of + 2] = all[i], ids[i]
      -- A message that was parked in its former partition waits for no flow in the new one.
      local due, is_parked = due_by(all[i])
      there[#there + 1], there[#there + 2] = is_parked and whole(due) or all[i], ids[i]
    end
  end
  add(steps, 'ZREM', set, members, { { 'ZADD', set, unpack(pairs_of) } })
  added[#added + 1] = { to_set, members, there }
end
carry(pending, to_pending, waits)
carry(dead, to_dead, died)
carry(remembered, to_remembered, ended)
-- The outboxes of a route that forwards its dead letters.
local outbox, to_outbox = KEYS[2 * EACH + 2], KEYS[2 * EACH + 3]
if outbox then carry(outbox, to_outbox, scores(outbox)) end
if has_groups then
  local left, joined = { 'ZREM', groups.grouped }, {}
  for n, name in ipairs(redis.call('HMGET', groups.groups, unpack(names))) do
    if name then
      left[#left + 1] = member_of(name, names[n])
      joined[2 * #left - 5], joined[2 * #left - 4] = '0', left[#left]
    end
  end
  if #left > 2 then
    added[#added + 1] = { to_groups.grouped, { unpack(left, 3) }, joined }
    remove(steps, left, '0')
  end
end

for _, pair in ipairs(hashes) do
  local values, there, set = redis.call('HMGET', pair[1], unpack(names)), {}, {}
  for n, id in ipairs(names) do
    if values[n] then
      there[#there + 1] = id
      set[#set + 1], set[#set + 2] = id, values[n]
    end
  end
  if #there > 0 then
    -- An earlier message of the id can have left values there.
    local old = redis.call('HMGET', pair[2], unpack(there))
    add(steps, 'HSET', pair[2], set, restore(pair[2], there, old))
    cleared[#cleared + 1] = { pair[1], there, set }
  end
end
grow(steps, bytes, -grown)
grow(steps, to_bytes, grown)
local earliest = head(to_pending)
for _, one in ipairs(added) do
  add(steps, 'ZADD', one[1], one[3], { { 'ZREM', one[1], unpack(one[2]) } })
end
for _, one in ipairs(cleared) do
  add(steps, 'HDEL', one[1], one[2], { { 'HSET', one[1], unpack(one[3]) } })
end
local failed = commit(steps)
if failed then return failed end
local first = head(to_pending)
if first and (not earliest or first < earliest) then wake(channel) end
return reply

-- Schedules one message from any program that has a Redis client, with the checks, the result and the wake-up of the
-- HTTP API. This script is public: later releases accept it.
--
--   redis-cli -x SCRIPT LOAD < lua/produce.lua
--   redis-cli EVALSHA <sha> 1 '{punctual:order-timeout:0/1}:pending' 1 order-42 +60000 'the payload' '{"key":"k"}'
--
-- KEYS[1]  {P:<route>:<index>/<N>}:pending; index = CRC32 (IEEE) of the id modulo N, where N is the number of
--          partitions in HGET P:routes <route>
-- ARGV     "1" (version), id, "+<delay ms>" | "<due ms>", payload, options as JSON or ""
-- options  headers, key, flow, group, content_type, properties, max_attempts, expires_at (ms), on_conflict ("keep" |
--          "replace"), debounce (ms; with "replace": due at the latest that long after the first of the messages that
--          were replaced)
-- reply    { status, id, due ms }; status: scheduled | exists | replaced | in_flight (live, not replaced) |
--          delivered | cancelled (the route remembers the id: nothing changed; the time is that of its completion)
-- errors   PUNCTUAL <slug> <text>, nothing written; slug: version, unknown-route, wrong-partition, invalid-id,
--          invalid-due, invalid-options, too-large, limit-messages, limit-bytes, limit-delay (limits of the route;
--          the first two are accepted again after deliveries)
--
-- include attempts bytes clock commit debounce ending fields flow groups history json limits scores seconds utf8 wake
-- begin include/attempts.lua
-- The failures and crashes in a value of `attempts`, "<failures> <crashes>"; both are 0 without a value.
local function counts(value)
  if not value then return 0, 0 end
  local failures, crashes = string.match(value, '^(%d+) (%d+)$')
  return tonumber(failures), tonumber(crashes)
end
-- end
-- begin include/scores.lua
-- A number as text with all its digits: `..` keeps only 14 of them.
local function whole(number)
  return string.format('%.0f', number)
end

-- A due message that waits for its flow (flow.lua) is parked: its score in `pending` is PARKED + due time.
local PARKED = 2 ^ 52

-- The due time of a message by its score in `pending`, and whether it is parked.
local function due_by(score)
  score = tonumber(score)
  if score < PARKED then return score, false end
  return score - PARKED, true
end

-- The lowest score of a sorted set, or nil.
local function head(key)
  return tonumber(redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')[2])
end
-- end
-- begin include/bytes.lua
-- include scores
-- The key `bytes`: the sum of the sizes of the bodies that are pending or in flight, absent when it is 0.

-- Adds the step that adds `more` to `bytes`.
local function grow(steps, bytes, more)
  if more == 0 then return end
  local was = redis.call('GET', bytes)
  local is = math.max(0, (tonumber(was) or 0) + more)
  local undo = { was and { 'SET', bytes, was } or { 'DEL', bytes } }
  steps[#steps + 1] = { is > 0 and { 'SET', bytes, whole(is) } or { 'DEL', bytes }, undo }
end
-- end
-- begin include/clock.lua
-- Microseconds since the epoch. Before Redis 7.2 TIME advances during a script, so it is read once.
local read_at
local function clock()
  if not read_at then
    local time = redis.call('TIME')
    read_at = time[1] * 1000000 + time[2]
  end
  return read_at
end
-- end
-- begin include/commit.lua
-- Executes all writes of a script, or none.
--
-- Redis keeps the writes of a failed script. So a script reads and checks first, then passes its writes as steps
-- { { command... }, undo, old }. When a step fails, the steps before it are undone in reverse order. `undo` is a list
-- of commands, or a function that makes the list from the command and from `old`, the values before it: an undo with
-- arguments for each message is built only when it is needed. The last step needs no undo. Returns nothing, or the
-- error reply that the script must return.
--
-- Redis checks the rights of the user at each command. A denied command can be one that the undo of an earlier step
-- needs too, for example ZADD after ZREM: that undo would fail as well. So commit probes such a command before the
-- earlier step, in a form that changes nothing. Nothing is removed before it is certain that it can be restored. A
-- command that was executed needs no probe.
local INVERSE =
  { ZADD = 'ZREM', ZREM = 'ZADD', ZREMRANGEBYRANK = 'ZADD', ZREMRANGEBYSCORE = 'ZADD', HSET = 'HDEL', HDEL = 'HSET' }
-- Forms that change nothing, in place of an undo with arguments for each message. The probe of any other command is the
-- undo itself, which changes nothing before its step. No key has the member or field NUL; some have the empty one.
local UNCHANGING = { ZADD = { 'XX', '0', '\0' }, ZREM = { '\0' }, HDEL = { '\0' }, LTRIM = { '0', '-1' } }

local function is_error(reply) return type(reply) == 'table' and reply.err end

local function is_oom(reply) return is_error(reply) and string.sub(reply.err, 1, 4) == 'OOM ' end

local function undo_of(step)
  local command, undo, old = unpack(step)
  return type(undo) == 'function' and undo(command, old) or undo
end

-- The names of the commands to probe before each step, by the index of the step.
local function probes_of(steps)
  local probes, needed, proven = {}, {}, {}
  for i, step in ipairs(steps) do
    local name, undo = step[1][1], step[2]
    local place = needed[name]
    if place and not proven[name] then
      probes[place] = probes[place] or {}
      table.insert(probes[place], name)
    end
    proven[name] = true
    if type(undo) == 'function' then
      local inverse = INVERSE[name]
      needed[inverse] = needed[inverse] or i
    else
      for _, one in ipairs(undo) do needed[one[1]] = needed[one[1]] or i end
    end
  end
  return probes
end

-- Returns the error reply to a probe. OOM does not count: at maxmemory Redis refuses a command that needs memory when
-- it is the first write of the script, but only after it has checked the right.
local function probe(names, step)
  for _, name in ipairs(names) do
    local form = UNCHANGING[name]
    for _, command in ipairs(form and { { name, step[1][2], unpack(form) } } or undo_of(step)) do
      local reply = command[1] == name and redis.pcall(unpack(command))
      if is_error(reply) and not is_oom(reply) then return reply end
    end
  end
end

local function commit(steps)
  local probes = probes_of(steps)
  -- At maxmemory Redis refuses only the first write of a script. A step that needs memory must be refused, so a form of
  -- it without effect comes before its probes.
  if probes[1] and steps[1][1][1] == 'HSET' then
    local reply = redis.pcall('HSET', steps[1][1][2], '', '', '')
    if is_oom(reply) then return reply end
  end
  for i, step in ipairs(steps) do
    local reply = probes[i] and probe(probes[i], step)
    if not reply then reply = redis.pcall(unpack(step[1])) end
    if is_error(reply) then
      for j = i - 1, 1, -1 do
        for _, one in ipairs(undo_of(steps[j])) do
          redis.pcall(unpack(one))
        end
      end
      return reply
    end
  end
end

-- Adds the step `command`, { name, key, values... }, unless there are no values.
local function write(steps, command, undo, old)
  if #command > 2 then steps[#steps + 1] = { command, undo, old } end
end

-- Adds the step `command key values...`, unless there are no values.
local function add(steps, command, key, values, undo, old)
  if #values > 0 then write(steps, { command, key, unpack(values) }, undo, old) end
end
-- end
-- begin include/debounce.lua
-- include scores
-- A message with `debounce` is due at the time asked for, but at most `max` ms after the first acceptance of those that
-- it replaced, one after another.

-- The due time of a message, and the time of the first acceptance. `due`: the time asked for; `old` and `score`: the body
-- and the score of the pending message that it replaces, nothing without one.
local function debounced(due, max, old, score, now)
  local old_due, first = now, now
  if old and #old >= 17 then old_due, first = struct.unpack('>I8I8', old, 2) end
  local last = first + max
  -- After a failed or deferred attempt the score is the time of the next one, which is not brought forward.
  local next_at = score and due_by(score) or 0
  if old and next_at ~= old_due then last = math.max(last, next_at) end
  return math.min(due, last), first
end
-- end
-- begin include/ending.lua
-- How and when (ms) a message was completed, by its score in `remembered`; nothing if that is more than `keep` ms ago.
local function ending(score, keep, now)
  if not score or tonumber(score) < now - keep then return end
  local at = math.floor(tonumber(score))
  return at < tonumber(score) and 'cancelled' or 'delivered', at
end
-- end
-- begin include/fields.lua
-- include commit
-- Steps that change fields of hashes.

-- Commands that restore fields of the hash `key`: fields[i] had the value old[i], which is false for an absent field.
local function restore(key, fields, old)
  local set, del = { 'HSET', key }, { 'HDEL', key }
  for i, field in ipairs(fields) do
    if old[i] then
      set[#set + 1] = field
      set[#set + 1] = old[i]
    else
      del[#del + 1] = field
    end
  end
  local undo = {}
  if #set > 2 then undo[#undo + 1] = set end
  if #del > 2 then undo[#undo + 1] = del end
  return undo
end

local function undeleted(command, old)
  return restore(command[2], { unpack(command, 3) }, old)
end

-- Adds the step `command`, an HDEL of fields that have the values `old`.
local function clear(steps, command, old)
  write(steps, command, undeleted, old)
end

local function unset(command, old)
  local fields = {}
  for i = 3, #command, 2 do fields[#fields + 1] = command[i] end
  return restore(command[2], fields, old)
end

-- Adds the step `command`, an HSET of fields that have the values `old`, false for an absent field.
local function put(steps, command, old)
  write(steps, command, unset, old)
end

-- Adds the step that deletes fields of a hash that exists.
local function drop_found(steps, key, fields)
  local found, values = { 'HDEL', key }, {}
  for i, value in ipairs(redis.call('HMGET', key, unpack(fields))) do
    if value then
      values[#values + 1] = value
      found[#found + 1] = fields[i]
    end
  end
  clear(steps, found, values)
end

-- Adds the step that deletes fields of a hash, unless the hash has none of them.
local function drop(steps, key, fields)
  if #fields > 0 and redis.call('EXISTS', key) == 1 then drop_found(steps, key, fields) end
end
-- end
-- begin include/flow_value.lua
-- The flow in a value of `flows`.
local function name_of(value) return string.sub(value, string.find(value, ' ', 1, true) + 1) end

-- The flow and the number in a value of `flows`. A message that was accepted before the route had flows has the empty
-- flow.
local function flow_of(value)
  local number, name = string.match(value or '0 ', '^(%S+) (.*)$')
  return name, number
end
-- end
-- begin include/members.lua
-- include commit
-- Steps that change members of sorted sets. The undo of each command is made from the command itself.

local function restored(set, ids, scores)
  local back = { 'ZADD', set }
  for i, id in ipairs(ids) do
    back[2 * i + 1], back[2 * i + 2] = type(scores) == 'table' and scores[i] or scores, id
  end
  return { back }
end

-- Adds the step `command`, a ZREM of members. `scores` is one score for all of them, or a table with one for each.
local function remove(steps, command, scores)
  write(steps, command, function() return restored(command[2], { unpack(command, 3) }, scores) end)
end

-- Adds the step `command`, which removes a range: the members `ids`, with `scores` as in `remove`. A range costs the
-- server and its append-only file less than a ZREM of each member.
local function remove_range(steps, command, ids, scores)
  write(steps, command, function() return restored(command[2], ids, scores) end)
end

local function removed(command)
  local back = { 'ZREM', command[2] }
  for i = 4, #command, 2 do back[#back + 1] = command[i] end
  return { back }
end

-- Adds the step `command`, a ZADD of members that are absent.
local function insert(steps, command)
  write(steps, command, removed)
end
-- end
-- begin include/flow.lua
-- include commit fields flow_value members scores
-- Flows: the messages of a route with the same flow share its rate, parallelism and order.
--
-- The flow keys of a partition; a route without flows passes none of them. `[flow]` is all of them in the KEYS of a
-- script.
-- flows    hash: id of a live message -> "<number> <flow>"; the numbers increase with each acceptance, the last one is
--          in the field "". "! <flow>" is a message that is delivered at once by request, or a schedule that is to be
--          planned: it takes no slot of the rate. A claim of it changes "!" to 0
-- waiting  sorted set, all scores 0: "<flow> NUL <due> NUL <number> NUL <id>" of each parked message
-- flights  sorted set, all scores 0: "<flow> NUL <id>" of each message in flight, if `parallel` or order limits its flow,
--          and, where order is asked for, of a message that holds its flow until it is delivered or dead
-- gates    sorted set: flow with parked messages -> when a claim looks at them (ms). `inf`: not before a message of the
--          flow ends or its rules change
-- slots    sorted set: flow -> theoretical arrival time of GCRA (us), only of flows that used their rate; "<flow> SOH" ->
--          time before which no message of the flow leaves (us); SOH SOH -> the last of these times
-- rules    hash: flow -> "<rate> <burst> <parallel> <pause>", each "-" if the route's setting holds

-- The flow keys among `keys` from place `first` on; nothing on a route without flows.
local function flow_keys(keys, first)
  if not keys[first] then return end
  local names = {}
  names.flows, names.waiting, names.flights, names.gates, names.slots, names.rules = unpack(keys, first, first + 5)
  return names
end

local function padded(number) return string.format('%016.0f', number) end

-- Its member of `waiting`. A message that is delivered at once comes first.
local function place_in(name, due, number, id)
  local at_once = number == '!'
  return table.concat({ name, padded(at_once and 0 or due), padded(at_once and 0 or number), id }, '\0')
end

-- Adds the step that numbers accepted messages: `names` has the flow of each. `at_once`: they take no slot of the rate,
-- all of them or those with true in this table.
local function number_flows(steps, flow, ids, names, at_once)
  if #ids == 0 then return end
  local last = redis.call('HGET', flow.flows, '')
  local old = redis.call('HMGET', flow.flows, unpack(ids))
  local values, place = { 'HSET', flow.flows, '', whole((tonumber(last) or 0) + #ids) }, {}
  local olds = { last }
  for i, id in ipairs(ids) do
    if not place[id] then
      olds[#olds + 1] = old[i]
      place[id] = #values + 2
      values[#values + 1] = id
      values[#values + 1] = ''
    end
    local is_at_once = at_once == true or at_once and at_once[i]
    values[place[id]] = (is_at_once and '!' or whole((tonumber(last) or 0) + i)) .. ' ' .. names[i]
  end
  put(steps, values, olds)
end

-- Adds the steps for messages that leave `pending` or `unack`: `scores` has their scores in `pending`, `values` those
-- in `flows`. They no longer hold their flows. Returns whether a claim must look at a flow now.
local function depart(steps, flow, ids, scores, values, now)
  if #ids == 0 then return false end
  -- Usually neither counts messages in flight nor has messages that wait.
  local counts, waits = redis.call('ZCARD', flow.flights) > 0, redis.call('ZCARD', flow.gates) > 0
  if not counts and not waits and not next(scores) then return false end
  local waiting, members, names = { 'ZREM', flow.waiting }, {}, {}
  for i, id in ipairs(ids) do
    local value = values[i]
    local name = value and name_of(value) or ''
    if scores[i] then
      local due, is_parked = due_by(scores[i])
      if is_parked then waiting[#waiting + 1] = place_in(name, due, select(2, flow_of(value)), id) end
    end
    names[i], members[i] = name, name .. '\0' .. id
  end
  remove(steps, waiting, '0')
  local flights, n = { 'ZREM', flow.flights }, 2
  for i, score in ipairs(counts and redis.call('ZMSCORE', flow.flights, unpack(members)) or {}) do
    if score then
      n = n + 1
      flights[n] = members[i]
    end
  end
  remove(steps, flights, '0')
  if not waits then return false end
  local opened, closed_again, known = { 'ZADD', flow.gates }, { 'ZADD', flow.gates }, {}
  for i, gate in ipairs(redis.call('ZMSCORE', flow.gates, unpack(names))) do
    if gate == 'inf' and not known[names[i]] then
      known[names[i]] = true
      local at = #opened
      opened[at + 1], opened[at + 2] = whole(now), names[i]
      closed_again[at + 1], closed_again[at + 2] = 'inf', names[i]
    end
  end
  write(steps, opened, { closed_again })
  return #opened > 2
end

-- Adds the step that deletes the `values` in `flows` of messages that end.
local function forget(steps, flow, ids, values)
  local ended, ended_values, n = { 'HDEL', flow.flows }, {}, 0
  for i, id in ipairs(ids) do
    if values[i] then
      n = n + 1
      ended[n + 2], ended_values[n] = id, values[i]
    end
  end
  clear(steps, ended, ended_values)
end

-- Adds the steps for messages that end, with their scores in `pending`, if any. Returns whether a claim must look at a
-- flow now.
local function conclude(steps, flow, ids, scores, now)
  if not flow or #ids == 0 then return false end
  local values = redis.call('HMGET', flow.flows, unpack(ids))
  local is_open = depart(steps, flow, ids, scores, values, now)
  forget(steps, flow, ids, values)
  return is_open
end
-- end
-- begin include/groups.lua
-- include fields members
-- Groups: messages of a route that are listed, cancelled and moved together.
--
-- groups   hash: id of a live message, also of a dead one -> its group
-- grouped  sorted set, all scores 0: "<group> NUL <id>" of each of them
--
-- While no live message has a group, both are absent, and no command is executed for them: an EXISTS that a script
-- executes anyway counts `groups` too.

-- The group keys among `keys` from place `first` on.
local function group_keys(keys, first) return { groups = keys[first], grouped = keys[first + 1] } end

-- How many of `others` exist, and whether there are groups. EXISTS counts a key as often as it is named.
local function existing(groups, others)
  local named, times = { 'EXISTS', unpack(others) }, #others + 1
  for _ = 1, times do named[#named + 1] = groups.groups end
  local count = redis.call(unpack(named))
  return count % times, count >= times
end

local function member_of(group, id) return group .. '\0' .. id end

-- Adds the steps that set the groups of accepted messages: `names` has the group of each id, false for none.
-- `has_groups`: whether there are groups.
local function join_groups(steps, groups, names, has_groups)
  local ids = {}
  for id, name in pairs(names) do
    if name or has_groups then ids[#ids + 1] = id end
  end
  if #ids == 0 then return end
  table.sort(ids)
  local known = has_groups and redis.call('HMGET', groups.groups, unpack(ids)) or {}
  local set, set_old, cleared, cleared_old = { 'HSET', groups.groups }, {}, { 'HDEL', groups.groups }, {}
  local joined, left = { 'ZADD', groups.grouped }, { 'ZREM', groups.grouped }
  for i, id in ipairs(ids) do
    local name, old = names[id], known[i]
    if name ~= (old or false) then
      if old then left[#left + 1] = member_of(old, id) end
      if name then
        set[#set + 1], set[#set + 2] = id, name
        set_old[#set_old + 1] = old or false
        joined[#joined + 1], joined[#joined + 2] = '0', member_of(name, id)
      else
        cleared[#cleared + 1], cleared_old[#cleared_old + 1] = id, old
      end
    end
  end
  put(steps, set, set_old)
  insert(steps, joined)
  remove(steps, left, '0')
  clear(steps, cleared, cleared_old)
end

-- Adds the steps that take messages that end out of their groups.
local function leave_groups(steps, groups, ids)
  local left, cleared, old = { 'ZREM', groups.grouped }, { 'HDEL', groups.groups }, {}
  for i, name in ipairs(redis.call('HMGET', groups.groups, unpack(ids))) do
    if name then
      left[#left + 1] = member_of(name, ids[i])
      cleared[#cleared + 1], old[#old + 1] = ids[i], name
    end
  end
  remove(steps, left, '0')
  clear(steps, cleared, old)
end

-- Up to `count` ids of a group after the id `after`, in order of their bytes.
local function ids_of_group(groups, name, after, count)
  local from, to = '(' .. member_of(name, after), '(' .. name .. '\1'
  local ids = redis.call('ZRANGEBYLEX', groups.grouped, from, to, 'LIMIT', '0', count)
  for i, member in ipairs(ids) do ids[i] = string.sub(member, #name + 2) end
  return ids
end
-- end
-- begin include/label.lua
-- The label of a stored body: its key, flow and group, and the token with which it was scheduled, as far as they are
-- set. Each is a field: a tag, the length of the text (LEB128) and the text (src/message/fields.rs).

-- Maximum bytes of a label that is read, and of metadata as JSON. A message with more has no label.
local LABELS = { most = 1024, most_json = 65536 }

-- `text` has less than 16384 bytes. Without a text there is no field.
local function field(tag, text)
  if type(text) ~= 'string' or text == '' then return '' end
  local size = #text < 128 and string.char(#text) or string.char(#text % 128 + 128, math.floor(#text / 128))
  return string.char(tag) .. size .. text
end

-- The label in metadata as JSON.
local function label_of_json(json)
  if #json > LABELS.most_json or json == '' then return '' end
  local is_valid, metadata = pcall(cjson.decode, json)
  if not is_valid or type(metadata) ~= 'table' then return '' end
  local fields = ''
  for _, one in ipairs({ { 2, 'key' }, { 9, 'flow' }, { 11, 'group' }, { 12, 'scheduled_by' } }) do
    local text = metadata[one[2]]
    if type(text) == 'string' and #text > LABELS.most then return '' end
    fields = fields .. field(one[1], text)
  end
  return #fields <= LABELS.most and fields or ''
end

-- The label of a body; empty for one that cannot be read. See src/message/codec.rs.
local function label(body)
  local version, form, at = string.byte(body, 1), string.byte(body, 18), 18
  if version == 2 and form then
    at = form % 4 >= 2 and 27 or 19
    if form % 16 >= 8 then
      local size = #body > at and struct.unpack('>I2', body, at) or 0
      return size <= LABELS.most and string.sub(body, at + 2, at + 1 + size) or ''
    end
    if form % 8 < 4 then return '' end
  elseif version ~= 1 then
    return ''
  end
  local size = #body >= at + 3 and struct.unpack('>I4', body, at) or 0
  return label_of_json(string.sub(body, at + 4, at + 3 + math.min(size, LABELS.most_json + 1)))
end
-- end
-- begin include/history.lua
-- include commit fields label scores
-- The history of a route: what became of its messages. `[history]` is both keys in the KEYS of a script.
--
-- history  hash: number of a block -> runs of ends; "" -> "<number of the next end> <number of the first end that is
--          kept> <time of the last end (ms)>". Ends are numbered from 0; the block of an end is its number divided by
--          BLOCK
-- ended    sorted set: id -> the block of its last end
--
-- A run: time of its ends (ms, 8 bytes), their number (1), their entries. An entry: length of the rest (2 bytes), outcome
-- (1), failed attempts, and with a delivery that one too (4), due time and time of acceptance (ms, 8 each), length of the
-- id (1), the id, and fields (label.lua); the last one is the block of the end before of the same id, if any. Numbers are
-- big endian.
--
-- Old ends are deleted in whole blocks: up to BLOCK - 1 more than `max` are kept. Times of ends do not descend, also if
-- the clock is stepped back.
local BLOCK = 16
local OUTCOMES = { dead = 2, cancelled = 3, replaced = 5 }

-- Adds the limits of the history to its keys. `settings`: "<maximum number of ends> <maximum age in ms>".
local function limited_history(history, settings)
  local max, age = string.match(settings, '^(%d+) (%d+)$')
  history.max, history.age = tonumber(max), tonumber(age)
  return history
end

-- The entry of a message that ends. `body`: nothing if it was lost. `error`: of a dead letter; `by`: the name of the token
-- that cancels.
local function entry_of(outcome, id, attempts, body, error, by)
  body = body or ''
  local times = #body >= 17 and string.sub(body, 2, 17) or string.rep('\0', 16)
  local rest = struct.pack('>BI4', OUTCOMES[outcome], attempts) .. times .. string.char(#id) .. id .. label(body)
  rest = rest .. field(21, error and string.sub(error, 1, 200)) .. field(22, by)
  return struct.pack('>I2', #rest) .. rest
end

-- The number of the next end, that of the first one that is kept, and the time of the last one.
local function state_of(text)
  local following, first, last = string.match(text or '0 0 0', '^(%d+) (%d+) (%d+)$')
  return tonumber(following), tonumber(first), tonumber(last)
end

-- The blocks that are deleted when the next end has the number `following`: those with more than `max` ends behind
-- them, and those with only ends before `oldest` (ms). `open`: the number of a block that is read too. Returns the
-- numbers of these blocks, their texts, and the text of `open`.
local function old_blocks(history, first, following, oldest, open)
  -- Twice as many as the largest batch fills, so that a history above its limit shrinks.
  local MOST_DELETED = 128
  local from = first / BLOCK
  local count = math.min(math.max(0, math.floor((following - history.max - first) / BLOCK)), MOST_DELETED)
  local numbers = {}
  -- A block is too old if the next one begins too early. Two more than `count` end in a call at most.
  for i = 0, count + 2 do numbers[#numbers + 1] = whole(from + i) end
  numbers[#numbers + 1] = whole(open)
  local texts = redis.call('HMGET', history.blocks, unpack(numbers))
  while count < #numbers - 2 and count < MOST_DELETED do
    local behind = texts[count + 2]
    if not behind or struct.unpack('>I8', behind, 1) >= oldest then break end
    count = count + 1
  end
  return { unpack(numbers, 1, count) }, { unpack(texts, 1, count) }, texts[#numbers]
end

-- Adds the ids in a block to `command`, each after `number`.
local function ids_in(text, number, command)
  local at = 1
  while at < #text do
    local count = string.byte(text, at + 8)
    at = at + 9
    for _ = 1, count do
      local n = #command
      command[n + 1], command[n + 2] = number, string.sub(text, at + 24, at + 23 + string.byte(text, at + 23))
      at = at + 2 + struct.unpack('>I2', text, at)
    end
  end
end

-- Adds the steps that delete blocks, and the ids with their last end there. `kept_from`: number of the first block that
-- is kept.
local function delete_blocks(steps, history, numbers, texts, kept_from)
  if #numbers == 0 then return end
  local blocks, old = { 'HDEL', history.blocks }, {}
  for i, number in ipairs(numbers) do
    if texts[i] then blocks[#blocks + 1], old[#old + 1] = number, texts[i] end
  end
  clear(steps, blocks, old)
  -- The undo leaves ids with a later end as they are: they are in `ended`.
  write(steps, { 'ZREMRANGEBYSCORE', history.ended, '-inf', '(' .. whole(kept_from) }, function()
    local undo = {}
    for i = #numbers, 1, -1 do
      local command = { 'ZADD', history.ended, 'NX' }
      if texts[i] then ids_in(texts[i], numbers[i], command) end
      if #command > 3 then undo[#undo + 1] = command end
    end
    return undo
  end)
end

-- Adds the steps that keep the ends of messages, with their entries.
local function keep_ends(steps, history, ids, entries, now)
  if not history or #ids == 0 then return end
  local text = redis.call('HGET', history.blocks, '')
  local following, first, last = state_of(text)
  now = math.max(now, last)
  local skipped = math.max(0, #ids - history.max)
  local after = following + #ids - skipped
  local block = math.floor(following / BLOCK)
  local numbers, texts, open = old_blocks(history, first, after, now - history.age, block)
  local kept_from = first / BLOCK + #numbers

  local known, before = redis.call('ZMSCORE', history.ended, unpack(ids)), {}
  local set, set_old, places = { 'HSET', history.blocks, '' }, { text }, { 'ZADD', history.ended }
  set[4] = string.format('%.0f %.0f %.0f', after, kept_from * BLOCK, now)
  local stamp, i, place = struct.pack('>I8', now), skipped + 1, following % BLOCK
  while i <= #ids do
    local number, to = whole(block), math.min(#ids, i + BLOCK - 1 - place)
    for n = i, to do
      local id, at = ids[n], 2 * (n - skipped)
      places[at + 1], places[at + 2] = number, id
      local former = before[id] or known[n]
      if former then
        local link = field(23, struct.pack('>I8', tonumber(former)))
        local entry = entries[n]
        entries[n] = struct.pack('>I2', struct.unpack('>I2', entry) + #link) .. string.sub(entry, 3) .. link
      end
      before[id] = number
    end
    local run = stamp .. string.char(to - i + 1) .. table.concat(entries, '', i, to)
    set[#set + 1], set[#set + 2] = number, (i == skipped + 1 and open or '') .. run
    set_old[#set_old + 1] = i == skipped + 1 and open or false
    i, block, place = to + 1, block + 1, 0
  end
  put(steps, set, set_old)
  write(steps, places, function()
    local back, added = { 'ZADD', history.ended }, { 'ZREM', history.ended }
    for n = skipped + 1, #ids do
      if known[n] then
        back[#back + 1], back[#back + 2] = known[n], ids[n]
      else
        added[#added + 1] = ids[n]
      end
    end
    local undo = {}
    if #back > 2 then undo[1] = back end
    if #added > 2 then undo[#undo + 1] = added end
    return undo
  end)
  delete_blocks(steps, history, numbers, texts, kept_from)
end
-- end
-- begin include/json.lua
-- A value as JSON, without the escapes of `/` that cjson writes.
local function encode(value)
  local json = cjson.encode(value)
  return string.find(json, '\\/', 1, true) and string.gsub(json, '\\/', '/') or json
end
-- end
-- begin include/limits.lua
-- Returns the capacity that the limits in `settings` of a partition leave, and these limits: `messages` and `bytes` of
-- bodies that are pending or in flight, and the maximum `delay` in ms. math.huge means no limit.
local function quota(settings, pending, unack, bytes)
  local limits = { messages = math.huge, bytes = math.huge, delay = math.huge }
  local left = { messages = math.huge, bytes = math.huge, delay = math.huge }
  local messages, size, delay = string.match(settings, '^%w+ %d+ %d+ %d+ %d+ (%d+) (%d+) (%d+)')
  if not messages then return left, limits end
  if messages ~= '0' then
    limits.messages = tonumber(messages)
    left.messages = limits.messages - redis.call('ZCARD', pending) - redis.call('ZCARD', unack)
  end
  if size ~= '0' then
    limits.bytes = tonumber(size)
    left.bytes = limits.bytes - (tonumber(redis.call('GET', bytes)) or 0)
  end
  if delay ~= '0' then limits.delay, left.delay = tonumber(delay), tonumber(delay) end
  return left, limits
end
-- end
-- begin include/seconds.lua
-- Whether a number that should be milliseconds since the epoch must be seconds: as ms it is in 1970 to 1973, and not 0.
local function is_seconds(millis)
  return millis > 0 and millis < 100000000000
end

-- Whether such a number must be in a smaller unit, or is not a time: as ms it is beyond the year 9999 at any offset.
local LAST_MILLIS = 253402387199999
local function is_far(millis)
  return millis > LAST_MILLIS
end
-- end
-- begin include/utf8.lua
-- Patterns of the well-formed sequences beyond ASCII (RFC 3629).
local SEQUENCES = {
  '[\194-\223][\128-\191]',
  '[\225-\236\238\239][\128-\191][\128-\191]', '\224[\160-\191][\128-\191]', '\237[\128-\159][\128-\191]',
  '\240[\144-\191][\128-\191][\128-\191]', '[\241-\243][\128-\191][\128-\191][\128-\191]',
  '\244[\128-\143][\128-\191][\128-\191]',
}

-- A text is UTF-8 if it is ASCII without its well-formed sequences.
local function is_utf8(text)
  local function is_ascii() return string.match(text, '^[%z\1-\127]*()') > #text end
  for _, sequence in ipairs(SEQUENCES) do
    if is_ascii() then return true end
    text = string.gsub(text, sequence, ' ')
  end
  return is_ascii()
end
-- end
-- begin include/wake.lua
-- Wakes sleeping schedulers. This is the last call of a script. Its error is ignored: a lost wake-up only costs time.
--
-- On a cluster the channel ends with `:swake` and is a shard channel, which the servers do not forward to each other.
-- Before Redis 7 there are no shard channels.
local function wake(channel)
  if string.sub(channel, -6) == ':swake' and type(redis.pcall('SPUBLISH', channel, '')) == 'number' then return end
  redis.pcall('PUBLISH', channel, '')
end
-- end

local MAX_ID_BYTES = 128
local MAX_METADATA_BYTES = 65536
local MAX_HEADER_NAME_BYTES = 256
local MAX_PROPERTY_BYTES = 255
local MAX_INTEGER = 9007199254740991
-- 7,900 years.
local MAX_DELAY = 249305040000000
local MAX_NAME_SHOWN = 64

local function refuse(slug, text)
  return redis.error_reply('PUNCTUAL ' .. slug .. ' ' .. text)
end

local tag = string.match(KEYS[1] or '', '^({.+}):pending$')
if not tag or #KEYS ~= 1 then return refuse('unknown-route', 'KEYS[1] must be {P:<route>:<index>/<partitions>}:pending') end
if ARGV[1] ~= '1' then return refuse('version', 'ARGV[1] must be 1') end
if #ARGV ~= 5 then return refuse('version', 'version 1 takes five arguments') end
local _, id, when, payload, options = unpack(ARGV)

-- Partition and limits, as punctual registered them.
local settings = redis.call('GET', tag .. ':route')
if not settings then return refuse('unknown-route', 'no route is registered at ' .. tag) end
if string.sub(settings, 1, 3) == '1m ' then
  return refuse('wrong-partition', 'the route is being moved to another number of partitions: repeat it later')
end
local partitions, index, max_payload, keep = string.match(settings, '^1 (%d+) (%d+) (%d+) ?(%d*)')
if not partitions then return refuse('version', 'the route was registered by another release') end
-- A former partition names the number that replaced its own.
if not string.find(tag, ':' .. index .. '/' .. partitions .. '}', 1, true) then
  return refuse('wrong-partition', 'the route has ' .. partitions .. ' partitions now')
end

if #id < 1 or #id > MAX_ID_BYTES or string.find(id, '[^A-Za-z0-9._:~-]') or id == '.' or id == '..' then
  return refuse('invalid-id', 'an id is 1 to 128 of A-Za-z0-9._:~-, and not . or ..')
end

-- CRC-32/ISO-HDLC, bit by bit: ids are short.
local crc = -1
for i = 1, #id do
  crc = bit.bxor(crc, string.byte(id, i))
  for _ = 1, 8 do
    local low = bit.band(crc, 1)
    crc = bit.rshift(crc, 1)
    if low == 1 then crc = bit.bxor(crc, 0xEDB88320) end
  end
end
crc = bit.bnot(crc) % 4294967296
local belongs = crc % partitions
if belongs ~= tonumber(index) then
  return refuse('wrong-partition', 'this id belongs to partition ' .. belongs .. '/' .. partitions)
end

local relative, digits = string.match(when, '^(%+?)(%d+)$')
local now = math.floor(clock() / 1000)
local due = digits and #digits <= 16 and tonumber(digits)
if not due or (relative == '+' and due > MAX_DELAY) then
  return refuse('invalid-due', 'use +<delay ms>, at most 7,900 years, or <due ms>')
end
if relative == '' and is_far(due) then
  return refuse('invalid-due', 'beyond the year 9999: microseconds? use milliseconds')
end
if relative == '' and is_seconds(due) then return refuse('invalid-due', 'seconds? use milliseconds') end
if relative == '+' then due = now + due end

if #payload > tonumber(max_payload) then
  return refuse('too-large', 'the payload takes ' .. #payload .. ' bytes, at most ' .. max_payload)
end

-- The options are checked, then written again: every release must be able to read what is stored.
local function is_text(value)
  return type(value) == 'string' and not string.find(value, '[%z\1-\8\10-\31\127]') and is_utf8(value)
end

local function is_integer(value, least)
  return type(value) == 'number' and value % 1 == 0 and value >= least and value <= MAX_INTEGER
end

local RESERVED = {}
for name in string.gmatch('authorization connection content-length content-type host keep-alive ' ..
  'proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding upgrade', '%S+') do
  RESERVED[name] = true
end

-- A header name as receivers compare it: in lower case, and with - for _, because CGI and WSGI map both to one name.
local function folded(name)
  return (string.gsub(string.lower(name), '_', '-'))
end

local function is_header_name(name)
  if type(name) ~= 'string' or #name < 1 or #name > MAX_HEADER_NAME_BYTES then return false end
  if string.find(name, "[^%w!#$%%&'*+.^_`|~-]") then return false end
  local plain = folded(name)
  return not RESERVED[plain] and string.sub(plain, 1, 9) ~= 'punctual-' and string.sub(plain, 1, 8) ~= 'webhook-'
end

local TEXT_PROPERTIES =
  { content_encoding = true, correlation_id = true, reply_to = true, type = true, app_id = true }

local fields, replace, expires_at, debounce, group, flow_name = {}, false, nil, nil, false, ''
local given = { headers = {} }
local known = {}
function known.headers(value)
  if type(value) ~= 'table' then return false end
  -- cjson decodes [] and {} alike. Inside a string the quotes would be escaped.
  if next(value) == nil and string.find(options, '"headers"%s*:%s*%[') then return false end
  local pairs_of, seen = {}, {}
  for name, text in pairs(value) do
    if not is_header_name(name) or not is_text(text) or seen[folded(name)] then return false end
    seen[folded(name)] = true
    pairs_of[#pairs_of + 1] = encode(name) .. ':' .. encode(text)
  end
  given.headers = value
  table.sort(pairs_of)
  if #pairs_of > 0 then fields[#fields + 1] = '"headers":{' .. table.concat(pairs_of, ',') .. '}' end
  return true
end
function known.key(value)
  if not is_text(value) then return false end
  if value ~= '' then
    fields[#fields + 1] = '"key":' .. encode(value)
    given.key = value
  end
  return true
end
local function is_name(value)
  return type(value) == 'string' and #value <= MAX_ID_BYTES and not string.find(value, '[^A-Za-z0-9._:~-]')
end
function known.flow(value)
  flow_name = value
  return is_name(value)
end
function known.group(value)
  if not is_name(value) or value == '.' or value == '..' then return false end
  if value ~= '' then
    fields[#fields + 1] = '"group":' .. encode(value)
    group = value
  end
  return true
end
function known.debounce(value)
  debounce = value
  return is_integer(value, 1) and value <= MAX_DELAY
end
function known.content_type(value)
  if not is_text(value) then return false end
  if value ~= '' then fields[#fields + 1] = '"content_type":' .. encode(value) end
  return true
end
function known.properties(value)
  if type(value) ~= 'table' then return false end
  local properties = {}
  for name, property in pairs(value) do
    if property == cjson.null then
      -- like an absent one
    elseif name == 'priority' then
      if not is_integer(property, 0) or property > 255 then return false end
      properties[#properties + 1] = string.format('"priority":%.0f', property)
    elseif TEXT_PROPERTIES[name] then
      if not is_text(property) or #property > MAX_PROPERTY_BYTES then return false end
      properties[#properties + 1] = encode(name) .. ':' .. encode(property)
    else
      return false
    end
  end
  table.sort(properties)
  if #properties > 0 then fields[#fields + 1] = '"properties":{' .. table.concat(properties, ',') .. '}' end
  return true
end
function known.max_attempts(value)
  if not is_integer(value, 1) or value > 4294967295 then return false end
  fields[#fields + 1] = string.format('"max_attempts":%.0f', value)
  return true
end
function known.expires_at(value)
  if not is_integer(value, 0) or is_seconds(value) or is_far(value) then return false end
  expires_at = value
  return true
end
function known.on_conflict(value)
  replace = value == 'replace'
  return replace or value == 'keep'
end

if options ~= '' then
  local ok, decoded = pcall(cjson.decode, options)
  if not ok or type(decoded) ~= 'table' or not string.find(options, '^%s*{') then
    return refuse('invalid-options', 'options must be a JSON object')
  end
  for name, value in pairs(decoded) do
    if not known[name] then
      return refuse('invalid-options', 'unknown option ' .. string.sub(tostring(name), 1, MAX_NAME_SHOWN))
    end
    if value ~= cjson.null and not known[name](value) then
      local form = (name == 'flow' or name == 'group') and ': it is 1 to 128 of A-Za-z0-9._:~-' or ''
      return refuse('invalid-options', 'invalid value of ' .. name .. form)
    end
  end
end
if debounce and not replace then
  return refuse('invalid-options', 'invalid value of debounce: it needs on_conflict "replace"')
end
if expires_at and expires_at < math.max(due, now) then
  return refuse('invalid-options', 'invalid value of expires_at: it would expire before it is delivered')
end
-- The value of a placeholder in the template of a flow; nothing if the message has none.
local function placeholder(name)
  if name == 'key' then return given.key end
  if name == 'route' then return (string.match(tag, '([^:]+):%d+/%d+}$')) end
  local header = string.match(name, '^header:(.+)$')
  if not header then return end
  if given.headers[header] then return given.headers[header] end
  for other, text in pairs(given.headers) do
    if string.lower(other) == string.lower(header) then return text end
  end
end

-- The flow by the template of the route. If a value is missing, it is empty.
local function filled(template)
  local is_missing = false
  local text = string.gsub(string.gsub(template, '{{', '\1'), '}}', '\2')
  text = string.gsub(text, '{([^{}]*)}', function(name)
    local value = placeholder(name)
    is_missing = is_missing or not value or value == ''
    return value or ''
  end)
  if is_missing then return '' end
  text = string.gsub(string.gsub(text, '\1', '{'), '\2', '}')
  text = string.gsub(text, '[^A-Za-z0-9._:~-]', function(byte)
    return string.format('~%02X', string.byte(byte))
  end)
  if #text <= MAX_ID_BYTES then return text end
  return string.sub(text, 1, MAX_ID_BYTES - 41) .. '~' .. redis.sha1hex(text)
end

local template = string.match(settings, ' flow ?(.*)$')
if template and template ~= '' and flow_name == '' then flow_name = filled(template) end
if flow_name ~= '' then fields[#fields + 1] = '"flow":' .. encode(flow_name) end
table.sort(fields)
local metadata = '{' .. table.concat(fields, ',') .. '}'
if #metadata > MAX_METADATA_BYTES then
  return refuse('invalid-options', 'headers and key take more than 65536 bytes')
end

local pending, unack, dead = KEYS[1], tag .. ':unack', tag .. ':dead'
local messages, attempts, errors = tag .. ':messages', tag .. ':attempts', tag .. ':errors'
local pending_score = redis.call('ZSCORE', pending, id)
local in_flight = redis.call('ZSCORE', unack, id)
local dead_score = not pending_score and redis.call('ZSCORE', dead, id)
local old = (pending_score or in_flight or dead_score) and redis.call('HGET', messages, id)
-- The due time inside the stored body.
local function due_inside() return old and #old >= 17 and struct.unpack('>I8', old, 2) or 0 end

if in_flight and replace then return { 'in_flight', id, (due_inside()) } end
if pending_score and not replace then return { 'exists', id, (due_by(pending_score)) } end
if (in_flight or dead_score) and not replace then return { 'exists', id, (due_inside()) } end

keep = tonumber(keep) or 0
local live = pending_score or in_flight or dead_score
local remembered = tag .. ':remembered'
local completed = not live and redis.call('ZSCORE', remembered, id)
if completed and keep > 0 then
  local how, at = ending(completed, keep, now)
  if how then return { how, id, at } end
end

local first = now
if debounce then due, first = debounced(due, debounce, pending_score and old, pending_score, now) end
local times = expires_at and struct.pack('>BI8I8BI8', 2, due, first, 6, expires_at) or struct.pack('>BI8I8', 1, due, first)
local body = times .. struct.pack('>I4', #metadata) .. metadata .. payload
local bytes = tag .. ':bytes'
local added = #body - (pending_score and old and #old or 0)
local left, limits = quota(settings, pending, unack, bytes)
if due - now > left.delay then
  return refuse('limit-delay', 'the delay exceeds ' .. whole(limits.delay) .. ' ms, the limit of the route')
end
if not pending_score and left.messages < 1 then
  return refuse('limit-messages', 'the partition holds ' .. whole(limits.messages) .. ' messages, its limit')
end
if added > 0 and added > left.bytes then
  return refuse('limit-bytes', 'the partition would exceed its limit of ' .. whole(limits.bytes) .. ' bytes')
end

-- The write that needs memory comes first: at maxmemory Redis refuses only the first write of a script.
local earliest, steps = head(pending), {}
add(steps, 'HSET', messages, { id, body }, restore(messages, { id }, { old }))
if dead_score then add(steps, 'ZREM', dead, { id }, { { 'ZADD', dead, dead_score, id } }) end
if completed then add(steps, 'ZREM', remembered, { id }, { { 'ZADD', remembered, completed, id } }) end
-- A dead message has no attempts.
for _, key in ipairs(pending_score and { attempts, errors } or dead_score and { errors } or {}) do
  local value = redis.call('HGET', key, id)
  if value then add(steps, 'HDEL', key, { id }, restore(key, { id }, { value })) end
end
grow(steps, bytes, added)
local groups = { groups = tag .. ':groups', grouped = tag .. ':grouped' }
join_groups(steps, groups, { [id] = group }, (pending_score or dead_score) and true)
local is_open = false
if template then
  local keys = {}
  for i, name in ipairs({ 'flows', 'waiting', 'flights', 'gates', 'slots', 'rules' }) do keys[i] = tag .. ':' .. name end
  local flow = flow_keys(keys, 1)
  if pending_score then
    local value = redis.call('HGET', flow.flows, id)
    is_open = depart(steps, flow, { id }, { pending_score }, { value }, now)
  end
  number_flows(steps, flow, { id }, { flow_name })
end
local age, most = string.match(string.gsub(settings, ' flow.*$', ''), ' history (%d+) (%d+)$')
if age and pending_score then
  local history = limited_history({ blocks = tag .. ':history', ended = tag .. ':ended' }, most .. ' ' .. age)
  local failures = counts(redis.call('HGET', attempts, id))
  keep_ends(steps, history, { id }, { entry_of('replaced', id, failures, old or nil) }, now)
end
add(steps, 'ZADD', pending, { whole(due), id }, {})
local failed = commit(steps)
if failed then return failed end
if not earliest or due < earliest or is_open then wake(tag .. ':wake') end
return { (pending_score or dead_score) and 'replaced' or 'scheduled', id, due }

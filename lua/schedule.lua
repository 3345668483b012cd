-- include attempts bytes clock commit debounce ending fields flow groups history layout limits members optional records scores wake
-- features flow history optional
-- Schedules a batch: each id becomes pending; a live one is kept or replaced.
--
-- KEYS   pending unack messages attempts errors dead route remembered records bytes groups grouped [history] [flow]
-- ARGV   wake channel, maximum bytes of bodies to read, required prefix of `route`: "<version> <partitions> <number> ",
--        time for which a completed id is remembered (ms), limits of the history ("": none; see history.lua), then runs of messages: "keep" | "replace", number of
--        messages, 1 if they have records, otherwise 0, plus 2 if they have groups, then for each message: id,
--        "+<delay ms>" | "<due ms>", after "/<max ms>/" to debounce it (debounce.lua), body after the times (checked by
--        the caller), its record if they have records (see records.lua), its group if they have groups, its flow if
--        there are flow keys
-- reply  for each message: status, due ms
--        status: scheduled | pending, unack, dead (kept there) | replaced | revived (it was dead) |
--        in_flight (not replaced) | delivered, cancelled (remembered, and it has no record: nothing changed; the time
--        is that of its completion) | known (its record was applied before: nothing changed; the time is 0) |
--        limit_messages, limit_bytes, limit_delay (a limit of the route: nothing changed);
--        error `PUNCTUAL split <text>`, nothing written, when the stored bodies of several messages exceed the maximum
--        bytes: the caller must send fewer at once; `PUNCTUAL unregistered <text>` when the partition is not open: the
--        caller must register the route first
local pending, unack, messages, attempts, errors, dead, route, remembered, records, held_bytes = unpack(KEYS)
local channel, max_bytes, layout, keep = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local groups = group_keys(KEYS, 11)
local _, history, flow
if #KEYS >= 13 then _, history, flow = optional_keys(KEYS, 13, ARGV[5]) end
local FIRST = 6
-- See src/message/codec.rs.
local VERSION = 2

local refusal, settings = closed(route, layout)
if refusal then return refusal end

local now = math.floor(clock() / 1000)
local earliest = head(pending)

-- Columns of the batch. `places` has the last place of each id.
local ids, whens, tails, replaces, record_at, group_at, flow_at, places, is_repeated = {}, {}, {}, {}, {}, {}, {}, {}, false
local at, n = FIRST, 0
while at < #ARGV do
  local replace, last, columns = ARGV[at] == 'replace', n + ARGV[at + 1], tonumber(ARGV[at + 2])
  local has_record, has_group = columns % 2 == 1, columns >= 2
  at = at + 3
  while n < last do
    n = n + 1
    local id = ARGV[at]
    ids[n], whens[n], tails[n] = id, ARGV[at + 1], ARGV[at + 2]
    is_repeated = is_repeated or places[id] ~= nil
    places[id] = n
    if replace then replaces[n] = true end
    if has_record then record_at[n] = ARGV[at + 3] end
    at = at + (has_record and 4 or 3)
    if has_group then
      group_at[n] = ARGV[at]
      at = at + 1
    end
    if flow then
      flow_at[n] = ARGV[at]
      at = at + 1
    end
  end
end

-- The state of each live id, updated as the batch proceeds when it names an id again.
local state, due_of = {}, {}
local function look(name, set)
  local scores = redis.call('ZMSCORE', set, unpack(ids))
  for i = 1, n do
    if scores[i] then state[ids[i]], due_of[ids[i]] = name, tonumber(scores[i]) end
  end
end
if earliest then look('pending', pending) end
local others, has_groups = existing(groups, { unack, dead })
if others > 0 then
  look('unack', unack)
  look('dead', dead)
end

-- Stored bodies are read for their due time, and to undo a replacement. Bodies of pending messages count in `bytes`.
local bytes, counted, size_of = 0, {}, {}
for i = 1, next(state) and n or 0 do
  local id = ids[i]
  if state[id] and not counted[id] and (state[id] ~= 'pending' or replaces[i]) then
    counted[id] = true
    local size = redis.call('HSTRLEN', messages, id)
    bytes = bytes + size
    if state[id] == 'pending' then size_of[id] = size end
  end
end
if bytes > max_bytes and n > 1 then
  return redis.error_reply('PUNCTUAL split the stored bodies take ' .. bytes .. ' bytes')
end

-- The due time in a body: the score in unack and dead is not the due time.
local inside = {}
local function due_inside(id)
  if not inside[id] then
    local body = redis.call('HGET', messages, id)
    inside[id] = body and #body >= 17 and struct.unpack('>I8', body, 2) or 0
  end
  return inside[id]
end

-- The scores of completed ids.
local completed = {}
if redis.call('EXISTS', remembered) == 1 then
  local scores = redis.call('ZMSCORE', remembered, unpack(ids))
  for i, id in ipairs(ids) do completed[id] = scores[i] end
end

-- The record last applied to each id that has one in the batch: as stored, and updated as the batch proceeds.
local recorded, stored, record_of = {}, {}, {}
if next(record_at) then
  for i, id in ipairs(ids) do
    if record_at[i] and record_of[id] == nil then
      recorded[#recorded + 1], record_of[id] = id, false
    end
  end
  stored = redis.call('HMGET', records, unpack(recorded))
  for i, id in ipairs(recorded) do record_of[id] = stored[i] end
end

local left, added = quota(settings, pending, unack, held_bytes), 0
local limited = math.min(left.messages, left.bytes, left.delay) < math.huge
-- The limit that `size` more bytes would exceed, if any.
local function exceeded(is, size, wait)
  if wait > left.delay then return 'limit_delay' end
  if is ~= 'pending' and left.messages < 1 then return 'limit_messages' end
  if size > 0 and size > left.bytes then return 'limit_bytes' end
end

-- Values of the last message. Messages that are due at the same time share them.
local when, due, score, prefix, debounce
local function read_due(text)
  local time, max = text, nil
  if string.byte(text) == 47 then max, time = string.match(text, '^/(%d+)/(.*)$') end
  when, due, score, debounce = text, tonumber(time), time, tonumber(max)
  if string.sub(time, 1, 1) == '+' then
    due = now + due
    score = whole(due)
  end
  prefix = struct.pack('>BI8I8', VERSION, due, now)
end

-- The times of messages that were written, if the batch names ids again.
local latest = {}
-- The bodies of these messages, on a route with a history, and the messages that are replaced.
local latest_body, replaced_ids, entries = {}, {}, {}
local reply = {}
local bodies, scores, n_written = { 'HSET', messages }, { 'ZADD', pending }, 0
-- The bodies that are replaced, by id.
local old_ids, old_bodies, old_score, revived = {}, {}, {}, {}
-- On a route with flows: messages that are written, with their flows, and pending ones that are replaced, with their
-- scores.
local written, written_flows, replaced, replaced_scores = {}, {}, {}, {}
-- The groups of the messages that are written, by id; false for none.
local group_of, groups_matter = {}, has_groups or next(group_at) ~= nil
local reused, reused_scores = { 'ZREM', remembered }, {}
local wake_up = false
for i = 1, n do
  local id, tail = ids[i], tails[i]
  local is, record, status, kept_due = state[id], record_at[i]
  if record then record = newer(record, record_of[id]) or 'known' end
  if record == 'known' then
    status, kept_due = 'known', 0
  elseif not is and not record and keep > 0 then
    status, kept_due = ending(completed[id], keep, now)
  end
  if status then
    -- Completed, or its record was applied before.
  elseif is and not replaces[i] then
    status = is
    kept_due = is == 'pending' and due_by(due_of[id]) or due_inside(id)
  elseif is == 'unack' then
    status = 'in_flight'
    kept_due = due_inside(id)
  else
    if whens[i] ~= when then read_due(whens[i]) end
    local due, score, prefix = due, score, prefix
    if debounce then
      local old = is == 'pending' and (latest[id] or redis.call('HGET', messages, id))
      local first
      due, first = debounced(due, debounce, old, old and due_of[id], now)
      score, prefix = whole(due), struct.pack('>BI8I8', VERSION, due, first)
    end
    local new = 17 + #tail
    local size = is == 'pending' and new - size_of[id] or new
    status, kept_due = limited and exceeded(is, size, due - now), due
    if not status then
      added = added + size
      if limited then
        if is ~= 'pending' then left.messages = left.messages - 1 end
        left.bytes = left.bytes - size
      end
      if not is then
        if completed[id] then
          reused[#reused + 1], reused_scores[#reused_scores + 1] = id, completed[id]
        end
      elseif not old_score[id] then
        -- Read once, also when the batch names the id again.
        old_score[id] = whole(due_of[id])
        old_ids[#old_ids + 1] = id
        old_bodies[id] = redis.call('HGET', messages, id)
        if is == 'dead' then
          revived[#revived + 1] = id
        else
          replaced[#replaced + 1], replaced_scores[#replaced_scores + 1] = id, old_score[id]
        end
      end
      if history and is == 'pending' then
        local n = #replaced_ids + 1
        local failures = latest_body[id] and 0 or (counts(redis.call('HGET', attempts, id)))
        replaced_ids[n] = id
        entries[n] = entry_of('replaced', id, failures, latest_body[id] or old_bodies[id])
      end
      status = is == 'dead' and 'revived' or is and 'replaced' or 'scheduled'
      n_written = n_written + 2
      bodies[n_written + 1], bodies[n_written + 2] = id, prefix .. tail
      scores[n_written + 1], scores[n_written + 2] = score, id
      if is_repeated then
        -- Not a score: the id was absent before the batch.
        if not is then old_score[id] = true end
        state[id], due_of[id], size_of[id], latest[id] = 'pending', due, new, prefix
        if history then latest_body[id] = prefix .. tail end
      end
      if record then record_of[id] = record end
      if groups_matter then group_of[id] = group_at[i] or false end
      if flow then written[#written + 1], written_flows[#written_flows + 1] = id, flow_at[i] end
      if not earliest or due < earliest then wake_up = true end
    end
  end
  reply[2 * i - 1], reply[2 * i] = status, kept_due
end

-- The write that needs memory comes first: at maxmemory Redis refuses only the first write of a script.
local steps = {}
write(steps, bodies, function(command)
  local fields, old = {}, {}
  for i = 3, #command, 2 do fields[#fields + 1], old[#old + 1] = command[i], old_bodies[command[i]] or false end
  return restore(messages, fields, old)
end)
if #revived > 0 then
  local dead_scores = {}
  for i, id in ipairs(revived) do dead_scores[i] = old_score[id] end
  remove(steps, { 'ZREM', dead, unpack(revived) }, dead_scores)
end
remove(steps, reused, reused_scores)
-- A replaced message starts again: no failures.
drop(steps, attempts, old_ids)
drop(steps, errors, old_ids)
local noted, note_old = { 'HSET', records }, {}
for i, id in ipairs(recorded) do
  if record_of[id] ~= stored[i] then
    note_old[#note_old + 1] = stored[i]
    noted[#noted + 1], noted[#noted + 2] = id, record_of[id]
  end
end
put(steps, noted, note_old)
grow(steps, held_bytes, added)
join_groups(steps, groups, group_of, has_groups)
local is_open = false
if flow and #written > 0 then
  local values = #replaced > 0 and redis.call('HMGET', flow.flows, unpack(replaced)) or {}
  is_open = depart(steps, flow, replaced, replaced_scores, values, now)
  number_flows(steps, flow, written, written_flows)
end
if history then keep_ends(steps, history, replaced_ids, entries, now) end
write(steps, scores, {})

local failed = commit(steps)
if failed then return failed end
if wake_up or is_open then wake(channel) end
return reply

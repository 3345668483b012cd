-- include attempts bytes clock commit completion failures fields flow flow_value groups history leases members optional outbox rates recurring scores sizes wake
-- features flow flow_value history optional outbox rates recurring
-- Settles claims: each message is completed, pending again, or dead.
--
-- KEYS   pending unack messages attempts errors dead remembered records bytes schedules groups grouped [outbox] [history] [flow]
-- ARGV   wake channel, time to remember an acknowledged id (ms), maximum number of remembered ids, settings of the
--        flows ("": none; see rates.lua), 1 if one of the messages is a schedule, otherwise 0, limits of the history ("":
--        none; see history.lua), then groups of leases with the same token and end: token, number of leases, bytes of
--        their bodies, their end: ack | retry, delay ms, error, attempt, hold | bury, 1 if the attempt counts,
--        otherwise 0, "<reason>: <error>", attempt | release, score | defer, pause ms, hold | plan (recurring.lua),
--        revision, occurrence ms, score, missed occurrences before it; then the ids, and for ack and bury their entries
--        if there is a history
--        attempt: the attempt that failed without its end (failures.lua), "" for none
--        hold: ms for which no other message of the flow leaves, "" for none, "unsent" if the message was not sent
-- reply  a string with a character for each lease: 1 done | 0 stale
--
-- A settlement, also a stale one, proves that its claim did not crash: it resets the crashes of the message.
local pending, unack, messages, attempts, errors, dead, remembered, records, bytes, schedules = unpack(KEYS)
local channel, keep, max = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local groups = group_keys(KEYS, 11)
local outbox, history, flow
if #KEYS >= 13 then outbox, history, flow = optional_keys(KEYS, 13, ARGV[6]) end
local settings = ARGV[4] ~= '' and flow_settings(ARGV[4])
local has_schedules = ARGV[5] == '1'
local ARGUMENTS = { ack = 0, retry = 4, bury = 3, release = 1, defer = 2, plan = 4 }

-- Adds the steps that set the failures of ids and reset their crashes. An id without failures has no field after that.
local function count(steps, attempts, ids, failures, old)
  local set, changed, changed_old = { 'HSET', attempts }, { 'HDEL', attempts }, {}
  local cleared, cleared_old = { 'HDEL', attempts }, {}
  for i, id in ipairs(ids) do
    local value = failures[i] > 0 and failures[i] .. ' 0'
    if value and value ~= old[i] then
      changed[#changed + 1], changed_old[#changed_old + 1] = id, old[i] or false
      set[#set + 1], set[#set + 2] = id, value
    elseif old[i] and not value then
      cleared[#cleared + 1], cleared_old[#cleared_old + 1] = id, old[i]
    end
  end
  -- If all leases are stale, this is the first write of the script, which must not need memory: see below.
  if #steps == 0 then clear(steps, changed, changed_old) end
  put(steps, set, changed_old)
  clear(steps, cleared, cleared_old)
end

local now = math.floor(clock() / 1000)
local has_attempts = redis.call('EXISTS', attempts) == 1
local reply, seen, left = {}, {}, 0
-- Collected from the messages that are settled.
local moved, ranges, tokens, moves = {}, {}, {}, { 'ZREM', unack }
local completed, waiting, buried, occurrences = {}, {}, {}, {}
-- Those that end, and the places of their entries.
local ended_ids, entries = {}, {}
local dues, deaths, named, errors_of = { 'ZADD', pending }, { 'ZADD', dead }, {}, {}
local counted, failures, old = {}, {}, {}
local stale, earliest_due = {}, math.huge
-- On a route with flows, by id: whether the message keeps its flow busy, whether it was not sent, and the ms for which
-- the others of its flow wait.
local stays, unsent, holds_for = {}, {}, {}

-- Settles one message; `value` is its value in `attempts`.
local function settle(id, how, place, value)
  local failed = (counts(value))
  if how == 'bury' then
    buried[#buried + 1], named[#named + 1] = id, id
    deaths[#deaths + 1], deaths[#deaths + 2] = whole(now), id
    errors_of[#named] = { failed + ARGV[place], ARGV[place + 1], ARGV[place + 2] }
    failed = 0
  else
    local due = tonumber(ARGV[place]) + (how == 'release' and 0 or now)
    waiting[#waiting + 1] = id
    dues[#dues + 1], dues[#dues + 2] = whole(due), id
    if due < earliest_due then earliest_due = due end
    if how == 'retry' then
      failed, named[#named + 1] = failed + 1, id
      errors_of[#named] = { failed, ARGV[place + 1], ARGV[place + 2] }
    end
  end
  local n = #counted + 1
  counted[n], failures[n], old[n] = id, failed, value
end

-- The run and the plan of an occurrence (recurring.lua), by its end and the place of its arguments.
local function run_of(how, place)
  if how ~= 'plan' then return ended(how == 'ack' and 'd' or 'x', now) end
  local missed = ARGV[place + 3]
  return missed ~= '0' and function() return string.format('m%.0f+%s', now, missed) end
end
local function plan_at(place)
  return { revision = ARGV[place], due = tonumber(ARGV[place + 1]), score = tonumber(ARGV[place + 2]) }
end

local at, done = 7, 0
while at < #ARGV do
  local token, number, size, how = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), ARGV[at + 3]
  local place, before, first = at + 4, #reply, done
  at = place + ARGUMENTS[how] + number
  local ids, first_entry = { unpack(ARGV, at - number, at - 1) }, at
  local ends = history and (how == 'ack' or how == 'bury')
  if ends then at = at + number end
  local all = held(unack, token, ids, seen, reply)
  if all then ranges[#ranges + 1] = { token, ids } end
  local values = has_attempts and redis.call('HMGET', attempts, unpack(ids)) or {}
  for i = 1, number do
    local id = ids[i]
    if reply[before + i] == '1' then
      done = done + 1
      moved[done] = id
      if not all then moves[#moves + 1], tokens[#tokens + 1] = id, token end
      local is_occurrence = has_schedules and is_schedule(id)
      if ends and not is_occurrence then
        ended_ids[#ended_ids + 1], entries[#entries + 1] = id, ARGV[first_entry + i - 1]
      end
      if how == 'plan' or (is_occurrence and (how == 'ack' or how == 'bury')) then
        occurrences[#occurrences + 1] = { id, run_of(how, place), how == 'plan' and plan_at(place) or nil }
        unsent[id] = how == 'plan'
      elseif how == 'ack' then
        completed[#completed + 1] = id
      else
        settle(id, how, place, values[i])
        if flow then
          local hold = ARGV[place + ARGUMENTS[how] - 1]
          -- Where order is asked for, a message that becomes pending again holds its flow.
          stays[id] = settings.ordered and how ~= 'bury'
          unsent[id] = how == 'release' or hold == 'unsent' or (how == 'bury' and ARGV[place] == '0')
          holds_for[id] = (how == 'retry' or how == 'defer') and tonumber(hold)
        end
      end
    elseif values[i] then
      stale[#stale + 1] = { id, values[i] }
    end
  end
  if how == 'ack' or how == 'bury' or how == 'plan' then
    left = left + (done - first == number and size or sizes(messages, { unpack(moved, first + 1) }))
  end
end
for _, one in ipairs(stale) do
  local id, value = unpack(one)
  if not seen[id] then
    seen[id] = true
    local n = #counted + 1
    counted[n], failures[n], old[n] = id, counts(value), value
  end
end

-- This also checks the type, and costs less than reading the head.
local wake_up = redis.call('ZCARD', pending) == 0
-- A write that needs no memory comes first: at maxmemory Redis refuses only the first write of a script, and settling
-- must work.
local steps = {}
end_leases(steps, unack, ranges, moves, tokens)
insert(steps, dues)
insert(steps, deaths)
if outbox then post(steps, outbox, { unpack(deaths, 3) }) end
count(steps, attempts, counted, failures, old)
if #named > 0 then
  local texts, former = { 'HSET', errors }, redis.call('HMGET', errors, unpack(named))
  for i, id in ipairs(named) do
    local failures, text, attempt = unpack(errors_of[i])
    texts[2 * i + 1], texts[2 * i + 2] = id, failure(now, failures, text, former[i], attempt)
  end
  put(steps, texts, former)
end
local again, again_flows, unplanned = {}, {}, {}
if #occurrences > 0 then
  local keys = { pending = pending, messages = messages, attempts = attempts, errors = errors, schedules = schedules }
  local again_bytes, again_at
  again, again_flows, unplanned, again_bytes, again_at = recur_each(steps, keys, occurrences, now, completed)
  earliest_due, left = math.min(earliest_due, again_at), left - again_bytes
end
grow(steps, bytes, -left)
local is_open = false
if flow and done > 0 then
  local values = redis.call('HMGET', flow.flows, unpack(moved))
  local leaving, leaving_values, ended_values, back, hold = moved, values, values, {}, {}
  -- Usually all messages end.
  if #completed < done or #occurrences > 0 then
    local value_of = {}
    leaving, leaving_values, ended_values = {}, {}, {}
    for i, value in ipairs(values) do
      local id = moved[i]
      local name, number = flow_of(value)
      value_of[id] = value
      if not stays[id] then leaving[#leaving + 1], leaving_values[#leaving_values + 1] = id, value end
      if unsent[id] and not (number == '0' and is_schedule(id)) then back[name] = (back[name] or 0) + 1 end
      if holds_for[id] then hold[name] = math.max(hold[name] or 0, (now + holds_for[id]) * 1000) end
    end
    for i, id in ipairs(completed) do ended_values[i] = value_of[id] end
  end
  is_open = depart(steps, flow, leaving, {}, leaving_values, now)
  shift_slots(steps, flow, settings, back, hold, now * 1000)
  number_flows(steps, flow, again, again_flows, unplanned)
  forget(steps, flow, completed, ended_values)
end
if history then keep_ends(steps, history, ended_ids, entries, now) end
complete(steps, remembered, records, attempts, errors, messages, groups, completed, keep, max)
if not wake_up and earliest_due < math.huge then wake_up = earliest_due < head(pending) end
local failed = commit(steps)
if failed then return failed end
if (wake_up and earliest_due < math.huge) or is_open then wake(channel) end
return { table.concat(reply) }

-- include claiming commit fields flow flow_value members rates scores
-- Chooses the due messages that a claim takes from a route with flows.

-- Due messages and flows that a claim looks at.
local MOST_LOOKED_AT = 1000
-- Messages among them that became due last, if more are due.
local MOST_RECENT = 250
-- Slots of idle flows that a claim deletes.
local MOST_IDLE = 5000
-- Time in us after which a slot that is over is deleted: the slot of a busy flow is not deleted and written in turns.
local IDLE = 1000000
-- Time in ms after which a suspect is looked at again that cannot be claimed because of its flow.
local SUSPECT_WAITS = 1000

-- The order of messages of a flow, which is that of their members of `waiting`.
local function precedes(a, b)
  local due, other_due = a.number == '!' and 0 or a.due, b.number == '!' and 0 or b.due
  if due ~= other_due then return due < other_due end
  local number, other_number = tonumber(a.number) or 0, tonumber(b.number) or 0
  if number ~= other_number then return number < other_number end
  return a.id < b.id
end

-- Usually the entries of a flow are in order.
local function sort(entries)
  for i = 2, #entries do
    if precedes(entries[i], entries[i - 1]) then
      table.sort(entries, precedes)
      return
    end
  end
end

local function queue_of(name, entry)
  return { name = name, entries = { entry }, at_once = false, slot = false, hold = 0 }
end

-- Ids and scores of due members of `pending`: the first `most`, and the last ones if there are more. Behind a backlog of
-- one flow, other flows have messages that have just become due. Where order is asked for, only the first ones are read.
local function due_for_flows(pending, millis, most, settings)
  local ids, scores = due_ones(pending, millis, '0', whole(most))
  if #ids < most or settings.ordered then return ids, scores end
  local count = redis.call('ZCOUNT', pending, '-inf', whole(millis))
  local from = math.max(most, count - MOST_RECENT)
  local found = from < count and redis.call('ZRANGE', pending, whole(from), whole(count - 1), 'WITHSCORES') or {}
  local recent, recent_scores = {}, {}
  for i = 1, #found, 2 do
    recent[#recent + 1], recent_scores[#recent_scores + 1] = found[i], found[i + 1]
  end
  for i, id in ipairs(ids) do
    recent[#recent + 1], recent_scores[#recent_scores + 1] = id, scores[i]
  end
  return recent, recent_scores
end

-- Sorts `ids` with `scores` in `pending`, all due, into flows. `is_whole`: no other message is due. Returns the flows
-- in the order in which they first appear, and the due time from which messages are not taken: others that are due
-- before them were not read.
local function queues(flow, ids, scores, settings, is_whole)
  local order, of, bound = {}, {}, math.huge
  if settings.ordered and not is_whole then
    bound = tonumber(scores[#scores])
    local n = #ids
    while n > 0 and tonumber(scores[n]) == bound do n = n - 1 end
    -- If all are due at the same time, they are parked, in order of their numbers.
    if n > 0 then ids = { unpack(ids, 1, n) } end
  end
  local values = #ids > 0 and redis.call('HMGET', flow.flows, unpack(ids)) or {}
  for i, id in ipairs(ids) do
    local name, number = flow_of(values[i])
    local queue = of[name]
    -- Few fields in each table: most of the time of a claim is theirs.
    local entry = { id = id, score = scores[i], due = tonumber(scores[i]), number = number, queue = queue, since = 0 }
    if queue then
      queue.entries[#queue.entries + 1] = entry
    else
      queue = queue_of(name, entry)
      entry.queue, of[name], order[#order + 1] = queue, queue, queue
    end
    if number == '!' then queue.at_once = true end
  end
  return order, of, bound
end

-- Adds the first parked messages of a flow, one more than `most`, to its entries. Returns whether these are all. A member
-- of `waiting` without a parked message is added to `stale`.
local function read_parked(flow, queue, most, stale)
  local name = queue.name
  local found =
    redis.call('ZRANGEBYLEX', flow.waiting, '[' .. name .. '\0', '(' .. name .. '\1', 'LIMIT', '0', whole(most + 1))
  if #found == 0 then return true end
  local ids = {}
  for i, member in ipairs(found) do ids[i] = string.sub(member, #name + 36) end
  local scores = redis.call('ZMSCORE', flow.pending, unpack(ids))
  for i, member in ipairs(found) do
    local due, is_parked = due_by(scores[i] or 0)
    if is_parked then
      local number = string.sub(member, #name + 19, #name + 34)
      local is_first = tonumber(string.sub(member, #name + 2, #name + 17)) == 0 and tonumber(number) == 0
      queue.entries[#queue.entries + 1] = {
        id = ids[i], due = due, member = member, is_parked = true, number = is_first and '!' or number, score = scores[i],
        queue = queue,
      }
    else
      stale[#stale + 1] = member
    end
  end
  return #found <= most
end

-- Whether a message in `pending` holds its flow.
local function holds(flow, name, id)
  return redis.call('ZSCORE', flow.flights, name .. '\0' .. id) and true or false
end

-- Takes up to `limit` messages from a flow. Adds to `taken`, `parked` and `delayed`, and sets the new gate and slot of
-- the flow.
local function serve(flow, queue, limit, now, bound, turn)
  local rules, entries = queue.rules, queue.entries
  local millis = math.floor(now / 1000)
  local in_flight = rules.parallel < math.huge
      and redis.call('ZLEXCOUNT', flow.flights, '[' .. queue.name .. '\0', '(' .. queue.name .. '\1')
    or 0
  local room = rules.is_paused and 0 or math.max(0, rules.parallel - in_flight)
  local slot = tonumber(queue.slot) or 0
  -- A slot of a slower rate is over when the rate is raised.
  if slot > now + rules.tolerance + rules.interval then slot = now + rules.tolerance end
  local has_all = true
  if turn.suspects then
    has_all = not queue.gate
  elseif queue.gate and room > 0 then
    local on_time = queue.hold > now and 0
      or rules.interval > 0 and math.floor((now + rules.tolerance - math.max(slot, now)) / rules.interval) + 1
    has_all = read_parked(flow, queue, math.max(0, math.min(room, limit, on_time or room)), turn.stale)
  end
  sort(entries)
  -- Without room, the parked messages were not read.
  local more = queue.gate and (room == 0 or turn.suspects)
  local is_full, taken = false, 0
  for _, entry in ipairs(entries) do
    local is_holder = turn.ordered and in_flight > 0 and not entry.is_parked and holds(flow, queue.name, entry.id)
    local has_room = room > 0 or (is_holder and not rules.is_paused)
    local on_time = entry.number == '!' or math.max(slot - rules.tolerance, queue.hold) <= now
    local can_leave = has_room and on_time
    local is_left = can_leave and taken == limit
    if is_left or (can_leave and entry.due >= bound and entry.number ~= '!') then is_full, can_leave = true, false end
    if can_leave then
      taken = taken + 1
      if not is_holder then room = room - 1 end
      local since = entry.due
      if entry.is_parked then
        since = math.max(since, math.min(queue.gate, millis))
        if entry.number ~= '!' then
          since = math.max(since, math.min(millis, math.floor(math.max(slot - rules.tolerance, queue.hold) / 1000)))
        end
      end
      entry.since = since
      if is_holder then entry.is_holder = true end
      turn.taken[#turn.taken + 1] = entry
      if entry.number ~= '!' and rules.interval > 0 then
        slot = math.max(slot, now) + rules.interval
        queue.new_slot = slot
      end
    elseif entry.is_parked then
      more = true
    elseif is_left and (is_holder or turn.suspects or not more) then
      -- The next claim takes it.
    elseif is_holder or turn.suspects then
      -- It keeps its place, and is looked at again at its slot.
      entry.at = millis + SUSPECT_WAITS
      if has_room then entry.at = math.max(millis + 1, math.ceil(math.max(slot - rules.tolerance, queue.hold) / 1000)) end
      turn.delayed[#turn.delayed + 1] = entry
    else
      turn.parked[#turn.parked + 1] = entry
      more = true
    end
  end
  -- All that was read was taken, and there is more to read.
  if not has_all and not more then more, is_full = true, true end
  if not more then
    queue.new_gate = nil
  elseif rules.is_paused or room == 0 and not is_full then
    queue.new_gate = math.huge
  elseif is_full then
    -- A gate that is open keeps its time while the messages wait for the capacity of an instance.
    queue.new_gate = math.min(queue.gate or millis, millis)
  else
    queue.new_gate = math.max(millis, math.ceil(math.max(slot - rules.tolerance, queue.hold) / 1000))
  end
  return taken
end

-- Takes turns among the flows of a route: those with an open gate, then those of `ids`, due messages with their
-- `scores`. Returns the taken ids, their scores in `pending`, and the times (ms) from which they
-- could be delivered.
--
-- turn.settings: rate, burst, parallel, ordered of the route; turn.suspects: whether `ids` are suspects
local function take_turns(flow, turn, ids, scores, limit, now, is_whole)
  local settings, millis = turn.settings, math.floor(now / 1000)
  turn.taken, turn.parked, turn.delayed, turn.stale, turn.ordered = {}, {}, {}, {}, settings.ordered
  local order, of, bound = queues(flow, ids, scores, settings, is_whole)
  local found = not turn.suspects
    and redis.call('ZRANGEBYSCORE', flow.gates, '-inf', whole(millis), 'LIMIT', '0', whole(MOST_LOOKED_AT))
  local first = {}
  local is_open = {}
  for _, name in ipairs(found or {}) do
    if not of[name] then of[name] = queue_of(name) end
    is_open[name], first[#first + 1] = true, of[name]
  end
  for _, queue in ipairs(order) do
    if not is_open[queue.name] then first[#first + 1] = queue end
  end
  turn.queues = first
  local names = {}
  for i, queue in ipairs(first) do names[i] = queue.name end
  if #names > 0 then
    local gates = redis.call('ZMSCORE', flow.gates, unpack(names))
    local slots, holds = slots_of(flow, names, now)
    local own, common = own_rules(flow, names), rules_of(settings)
    for i, queue in ipairs(first) do
      queue.slot = slots[i]
      local hold = tonumber(holds[i] or 0)
      if hold > now then queue.hold = hold end
      if gates[i] then
        queue.gate = gates[i] == 'inf' and math.huge or tonumber(gates[i])
        queue.new_gate = queue.gate
      end
      queue.rules = own[i] and rules_of(settings, own[i]) or common
    end
  end
  local left = limit
  for _, queue in ipairs(first) do
    local is_closed = queue.gate and queue.gate > millis and not settings.ordered and not queue.at_once
    if left == 0 and #queue.entries == 0 then
      -- The next claim looks at it.
    elseif is_closed and not turn.suspects then
      for _, entry in ipairs(queue.entries) do turn.parked[#turn.parked + 1] = entry end
    else
      left = left - serve(flow, queue, left, now, bound, turn)
    end
  end
  local taken, taken_scores, since = {}, {}, {}
  for i, entry in ipairs(turn.taken) do
    taken[i], taken_scores[i], since[i] = entry.id, entry.score, entry.since
  end
  return taken, taken_scores, since
end

-- Adds the steps of a turn, except those that move the taken messages from `pending` to `unack`. `gone`: ids among the
-- taken ones that have no body, and are dead now.
local function end_turns(steps, flow, turn, pending, millis, gone)
  local parked, back, waiting = { 'ZADD', pending }, { 'ZADD', pending }, { 'ZADD', flow.waiting }
  for _, entry in ipairs(turn.parked) do
    local n = #parked
    parked[n + 1], parked[n + 2] = whole(PARKED + entry.due), entry.id
    back[n + 1], back[n + 2] = entry.score, entry.id
    waiting[n + 1], waiting[n + 2] = '0', place_in(entry.queue.name, entry.due, entry.number, entry.id)
  end
  for _, entry in ipairs(turn.delayed) do
    local n = #parked
    parked[n + 1], parked[n + 2] = whole(entry.at), entry.id
    back[n + 1], back[n + 2] = entry.score, entry.id
  end
  write(steps, parked, { back })
  insert(steps, waiting)
  local left, flights, given_up = { 'ZREM', flow.waiting }, { 'ZADD', flow.flights }, { 'ZREM', flow.flights }
  local again, again_old, n = { 'HSET', flow.flows }, {}, 2
  for _, entry in ipairs(turn.taken) do
    local queue, id = entry.queue, entry.id
    local flight = queue.name .. '\0' .. id
    if entry.is_parked then left[#left + 1] = entry.member end
    if gone[id] then
      if entry.is_holder then given_up[#given_up + 1] = flight end
      -- The flow is not busy.
      if queue.new_gate then queue.new_gate = millis end
    elseif not entry.is_holder then
      flights[n + 1], flights[n + 2] = '0', flight
      n = n + 2
    end
    if entry.number == '!' then
      local at = #again
      again[at + 1], again[at + 2] = id, '0 ' .. queue.name
      again_old[#again_old + 1] = '! ' .. queue.name
    end
  end
  for _, member in ipairs(turn.stale) do left[#left + 1] = member end
  remove(steps, left, '0')
  remove(steps, given_up, '0')
  insert(steps, flights)
  put(steps, again, again_old)
  local gates, gates_back = { 'ZADD', flow.gates }, { 'ZADD', flow.gates }
  local fresh, ended, ended_scores = { 'ZADD', flow.gates }, { 'ZREM', flow.gates }, {}
  local slots, slots_back, first_slots = { 'ZADD', flow.slots }, { 'ZADD', flow.slots }, { 'ZADD', flow.slots }
  local function text(gate) return gate == math.huge and 'inf' or whole(gate) end
  for _, queue in ipairs(turn.queues) do
    local name, was, is = queue.name, queue.gate, queue.new_gate
    if was and not is then
      ended[#ended + 1], ended_scores[#ended_scores + 1] = name, text(was)
    elseif was and is ~= was then
      gates[#gates + 1], gates[#gates + 2] = text(is), name
      gates_back[#gates_back + 1], gates_back[#gates_back + 2] = text(was), name
    elseif is and not was then
      fresh[#fresh + 1], fresh[#fresh + 2] = text(is), name
    end
    if queue.new_slot then
      local at = string.format('%.3f', queue.new_slot)
      if queue.slot then
        slots[#slots + 1], slots[#slots + 2] = at, name
        slots_back[#slots_back + 1], slots_back[#slots_back + 2] = queue.slot, name
      else
        first_slots[#first_slots + 1], first_slots[#first_slots + 2] = at, name
      end
    end
  end
  remove(steps, ended, ended_scores)
  write(steps, gates, { gates_back })
  insert(steps, fresh)
  write(steps, slots, { slots_back })
  insert(steps, first_slots)
end

-- Adds the step that deletes the slots of idle flows: those that are over are equal to none. It must be the last step:
-- it has no undo.
local function forget_idle(steps, flow, now)
  local first, latest = head(flow.slots), now - IDLE
  if not first or first > latest then return end
  local last = redis.call('ZRANGE', flow.slots, whole(MOST_IDLE), whole(MOST_IDLE), 'WITHSCORES')[2]
  if last and tonumber(last) < latest then latest = tonumber(last) end
  write(steps, { 'ZREMRANGEBYSCORE', flow.slots, '-inf', string.format('%.3f', latest) }, {})
end

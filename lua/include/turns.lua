-- include commit fields flow flow_value members rates scores
-- Chooses the due messages that a claim takes from a route with flows.

-- Flows with an open gate that a claim looks at.
local MOST_LOOKED_AT = 1000
-- Due messages that a claim reads while messages wait for their flows. It can have to park all of them, which takes a
-- millisecond of Redis' time for a hundred, and other claims follow.
local MOST_READ = 250
-- Due messages that it reads besides, if more are due: those that became due last.
local MOST_RECENT = 100
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

local function queue_of(name)
  return { name = name, entries = {}, at_once = false, slot = false, hold = 0 }
end

-- Adds due members of `pending` that became due last to the first ones. Behind a backlog of one flow, other flows have
-- messages that have just become due.
local function add_recent(pending, millis, ids, scores)
  local count = redis.call('ZCOUNT', pending, '-inf', whole(millis))
  local from = math.max(#ids, count - MOST_RECENT)
  if from >= count then return end
  local found = redis.call('ZRANGE', pending, whole(from), whole(count - 1), 'WITHSCORES')
  for i = 1, #found, 2 do
    ids[#ids + 1], scores[#scores + 1] = found[i], found[i + 1]
  end
end

-- Whether all of the first due messages are parked that have the flow of the very first: the gate of that flow is closed.
-- `values`: those of the messages in `flows`.
local function is_backlog(flow, values, millis)
  local gate = values[1] and redis.call('ZSCORE', flow.gates, (flow_of(values[1])))
  if not gate or (gate ~= 'inf' and tonumber(gate) <= millis) then return false end
  for _, value in ipairs(values) do
    -- It is delivered at once by request.
    if value and string.byte(value) == 33 then return false end
  end
  return true
end

-- Adds a message to those that are parked. They are lists and not entries: behind a backlog a claim parks hundreds.
local function park(parked, id, score, name, number)
  local n = #parked.ids + 1
  parked.ids[n], parked.scores[n], parked.names[n], parked.numbers[n] = id, score, name, number
end

-- Sorts due messages, with their `values` in `flows`, into flows. Returns the flows in the order in which they first
-- appear, the flows by name, and for each message its flow and its number.
local function queues(count, values)
  local order, of, places, numbers = {}, {}, {}, {}
  for i = 1, count do
    local name, number = flow_of(values[i])
    local queue = of[name]
    if not queue then
      queue = queue_of(name)
      of[name], order[#order + 1] = queue, queue
    end
    if number == '!' then queue.at_once = true end
    places[i], numbers[i] = queue, number
  end
  return order, of, places, numbers
end

-- The number of due messages with these `scores` that are looked at, and the due time from which none is taken: others
-- that are due before them were not read.
local function bound_of(scores, settings, is_whole)
  local n = #scores
  if not settings.ordered or is_whole or n == 0 then return n, math.huge end
  local bound = tonumber(scores[n])
  while n > 0 and tonumber(scores[n]) == bound do n = n - 1 end
  -- If all are due at the same time, they are parked, in order of their numbers.
  return n > 0 and n or #scores, bound
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
      park(turn.parked, entry.id, entry.score, queue.name, entry.number)
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
-- `scores`, and `values` in `flows`. Returns the taken ids, their scores in `pending`, and the times (ms) from which they
-- could be delivered.
--
-- turn.settings: rate, burst, parallel, ordered of the route; turn.suspects: whether `ids` are suspects
local function take_turns(flow, turn, ids, scores, values, limit, now, is_whole)
  local settings, millis = turn.settings, math.floor(now / 1000)
  turn.taken, turn.delayed, turn.stale, turn.ordered = {}, {}, {}, settings.ordered
  turn.parked = { ids = {}, scores = {}, names = {}, numbers = {} }
  local count, bound = bound_of(scores, settings, is_whole)
  local order, of, places, numbers = queues(count, values)
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
        queue.is_closed = queue.gate > millis and not settings.ordered and not queue.at_once and not turn.suspects
      end
      queue.rules = own[i] and rules_of(settings, own[i]) or common
    end
  end
  for i = 1, count do
    local queue, id, score = places[i], ids[i], scores[i]
    if queue.is_closed then
      park(turn.parked, id, score, queue.name, numbers[i])
    else
      -- Few fields in each table: most of the time of a claim is theirs.
      queue.entries[#queue.entries + 1] =
        { id = id, score = score, due = tonumber(score), number = numbers[i], queue = queue, since = 0 }
    end
  end
  local left = limit
  for _, queue in ipairs(first) do
    -- Otherwise the next claim looks at it.
    if not queue.is_closed and (left > 0 or #queue.entries > 0) then
      left = left - serve(flow, queue, left, now, bound, turn)
    end
  end
  local taken, taken_scores, since = {}, {}, {}
  for i, entry in ipairs(turn.taken) do
    taken[i], taken_scores[i], since[i] = entry.id, entry.score, entry.since
  end
  return taken, taken_scores, since
end

-- Adds the steps that park messages.
local function end_parking(steps, flow, parked, pending)
  if #parked.ids == 0 then return end
  local moves, waiting = { 'ZADD', pending }, { 'ZADD', flow.waiting }
  local score, name, at, place
  for i, id in ipairs(parked.ids) do
    -- In a backlog, consecutive messages usually have the same flow and due time.
    if parked.scores[i] ~= score or parked.names[i] ~= name then
      score, name = parked.scores[i], parked.names[i]
      at, place = whole(PARKED + score), name .. '\0' .. padded(score) .. '\0'
    end
    local number = parked.numbers[i]
    moves[2 * i + 1], moves[2 * i + 2] = at, id
    waiting[2 * i + 1] = '0'
    waiting[2 * i + 2] = number == '!' and place_in(name, score, number, id) or place .. padded(number) .. '\0' .. id
  end
  write(steps, moves, function() return restored(pending, parked.ids, parked.scores) end)
  insert(steps, waiting)
end

-- Adds the steps of a turn, except those that move the taken messages from `pending` to `unack`. `gone`: ids among the
-- taken ones that have no body, and are dead now.
local function end_turns(steps, flow, turn, pending, millis, gone)
  end_parking(steps, flow, turn.parked, pending)
  local delayed, back = { 'ZADD', pending }, { 'ZADD', pending }
  for _, entry in ipairs(turn.delayed) do
    local n = #delayed
    delayed[n + 1], delayed[n + 2] = whole(entry.at), entry.id
    back[n + 1], back[n + 2] = entry.score, entry.id
  end
  write(steps, delayed, { back })
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
    elseif not entry.is_holder and is_counted(queue.rules) then
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

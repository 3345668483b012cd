-- include commit flow_value members rates
-- The usual claim from a route with flows: all due messages that it read can leave. This needs no entry for each message,
-- which is most of the time of take_turns (turns.lua).

-- `values`: those of due messages in `flows`; `gate`: the first gate. Returns nothing if one of the messages has to wait
-- or is delivered at once by request, or if a parked message can leave. Otherwise the flow of each message, the flows,
-- their slots before and after, and whether messages in flight are counted.
local function pass(flow, settings, values, gate, now)
  if gate and gate <= math.floor(now / 1000) then return end
  local of, names, numbers, n = {}, {}, {}, 0
  for i, value in ipairs(values) do
    local name = ''
    if value then
      if string.byte(value) == 33 then return end
      name = name_of(value)
    end
    of[i] = name
    local number = numbers[name]
    if number then
      numbers[name] = number + 1
    else
      n = n + 1
      names[n], numbers[name] = name, 1
    end
  end
  if gate then
    for _, own in ipairs(redis.call('ZMSCORE', flow.gates, unpack(names))) do
      if own then return end
    end
  end
  for _, own in ipairs(own_rules(flow, names)) do
    if own then return end
  end
  local rules = rules_of(settings)
  local interval, tolerance, counts = rules.interval, rules.tolerance, is_counted(rules)
  local slots, holds = slots_of(flow, names, now)
  local new_slots = {}
  for i, name in ipairs(names) do
    local number = numbers[name]
    if holds[i] and tonumber(holds[i]) > now then return end
    if counts then
      local in_flight = redis.call('ZLEXCOUNT', flow.flights, '[' .. name .. '\0', '(' .. name .. '\1')
      if in_flight + number > rules.parallel then return end
    end
    if interval > 0 then
      local slot = tonumber(slots[i] or 0)
      if slot > now + tolerance + interval then slot = now + tolerance end
      for _ = 1, number do
        if slot - tolerance > now then return end
        slot = (slot > now and slot or now) + interval
      end
      new_slots[i] = slot
    end
  end
  return { of = of, names = names, slots = slots, new_slots = new_slots, counts = counts }
end

-- Adds the steps for the messages that leave, except the moves from `pending` to `unack`. `ids`: messages with a body.
-- `places`: their places in the ids of `pass`; nil if every message has a body.
local function end_pass(steps, flow, passed, ids, places)
  local flights, n = { 'ZADD', flow.flights }, 2
  for i, id in ipairs(passed.counts and ids or {}) do
    flights[n + 1], flights[n + 2] = '0', passed.of[places and places[i] or i] .. '\0' .. id
    n = n + 2
  end
  insert(steps, flights)
  local slots, back, first_slots = { 'ZADD', flow.slots }, { 'ZADD', flow.slots }, { 'ZADD', flow.slots }
  local moved, first = 2, 2
  for i, slot in ipairs(passed.new_slots) do
    local at, name, was = string.format('%.3f', slot), passed.names[i], passed.slots[i]
    if was then
      slots[moved + 1], slots[moved + 2] = at, name
      back[moved + 1], back[moved + 2] = was, name
      moved = moved + 2
    else
      first_slots[first + 1], first_slots[first + 2] = at, name
      first = first + 2
    end
  end
  write(steps, slots, { back })
  insert(steps, first_slots)
end

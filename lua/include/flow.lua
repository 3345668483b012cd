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

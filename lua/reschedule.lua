-- include clock commit expiry flow flow_value layout limits scores wake
-- Changes the due time of a pending message.
--
-- KEYS   pending unack messages dead route groups [flow]
-- ARGV   wake channel, required prefix of `route`, id, "+<delay ms>" | "<due ms>" | "by <ms> <ms>": from its due time on,
--        at most the second number from now | "now": its flow's rate does not apply, 1 if the flows are ordered,
--        otherwise 0, the group that it must have ("": any), the time before which it must have been accepted or moved
--        last (ms; "": any); it counts as moved at that time or later
-- reply  held (in its flow another message comes first), the id of that | done | in_flight | dead | not_found |
--        limit_delay (longer than the route allows) | later (accepted or moved too late) | expires (before the new due
--        time), then in ms the due time for done, the time of expiry for expires, otherwise 0; error `PUNCTUAL
--        unregistered <text>`, nothing written, when the partition is not open
local pending, unack, messages, dead, route = unpack(KEYS)
local channel, layout, id, when, ordered, group, before = unpack(ARGV)
local flow = flow_keys(KEYS, 7)

-- Due messages that are read to find the first one of an ordered flow.
local MOST_DUE = 1000

-- The id of the message of an ordered flow that is delivered next, if there is one: the message that holds the flow, or
-- the first of those that are parked or due. Then whether this is certain: no due message before it was left unread.
local function first_of(name, now)
  local from, to = '[' .. name .. '\0', '(' .. name .. '\1'
  local holder = redis.call('ZRANGEBYLEX', flow.flights, from, to, 'LIMIT', '0', '1')[1]
  if holder then return string.sub(holder, #name + 2), true end
  local first = redis.call('ZRANGEBYLEX', flow.waiting, from, to, 'LIMIT', '0', '1')[1]
  local due = redis.call('ZRANGEBYSCORE', pending, '-inf', whole(now), 'WITHSCORES', 'LIMIT', '0', whole(MOST_DUE))
  local ids = {}
  for i = 1, #due, 2 do ids[#ids + 1] = due[i] end
  local values = #ids > 0 and redis.call('HMGET', flow.flows, unpack(ids)) or {}
  for i, one in ipairs(ids) do
    local its_flow, number = flow_of(values[i])
    local member = its_flow == name and place_in(name, tonumber(due[2 * i]), number, one)
    if member and (not first or member < first) then first = member end
  end
  local since = first and tonumber(string.sub(first, #name + 2, #name + 17))
  return first and string.sub(first, #name + 36), #ids < MOST_DUE or (since and since < tonumber(due[#due]))
end

local refusal, settings = closed(route, layout)
if refusal then return refusal end

if group ~= '' and redis.call('HGET', KEYS[6], id) ~= group then return { 'not_found', 0 } end
if redis.call('ZSCORE', unack, id) then return { 'in_flight', 0 } end
if redis.call('ZSCORE', dead, id) then return { 'dead', 0 } end
local score = redis.call('ZSCORE', pending, id)
local body = redis.call('HGET', messages, id)
-- An id without a body is an orphan: the next claim makes it dead.
if not score or not body then return { 'not_found', 0 } end

local now = math.floor(clock() / 1000)
if before ~= '' and #body >= 17 and struct.unpack('>I8', body, 10) >= tonumber(before) then return { 'later', 0 } end
local due = when == 'now' and now or tonumber(when)
local by, longest = string.match(when, '^by (%-?%d+) (%d+)$')
if by then
  due = math.max(0, math.min(due_by(score) + tonumber(by), now + tonumber(longest)))
elseif string.sub(when, 1, 1) == '+' then
  due = now + due
end
if due - now > quota(settings, pending, unack, '').delay then return { 'limit_delay', 0 } end
local expires = expiry(body)
if expires and expires < math.max(due, now) then return { 'expires', expires } end
local steps, is_open = {}, false
if flow then
  local value = redis.call('HGET', flow.flows, id)
  local name = flow_of(value)
  local at_once = when == 'now'
  if at_once and ordered == '1' then
    local first, is_certain = first_of(name, now)
    if first and first ~= id then return { 'held', first } end
    -- Otherwise it is appended, so that it does not pass a message that was left unread.
    at_once = is_certain
  end
  is_open = depart(steps, flow, { id }, { score }, { value }, now)
  number_flows(steps, flow, { id }, { name }, at_once)
end
local earliest = head(pending)
-- Not before `before`: a call that is repeated with it does not move the message again, whatever the clock shows.
local accepted = math.max(now, tonumber(before) or 0)
local moved = string.sub(body, 1, 1) .. struct.pack('>I8I8', due, accepted) .. string.sub(body, 18)
table.insert(steps, 1, { { 'HSET', messages, id, moved }, { { 'HSET', messages, id, body } } })
add(steps, 'ZADD', pending, { whole(due), id }, {})
local failed = commit(steps)
if failed then return failed end
if due < earliest or is_open then wake(channel) end
return { 'done', due }

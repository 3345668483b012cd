-- include clock commit flow_value layout members scores wake
-- Changes the rules of one flow, or pauses or resumes it.
--
-- KEYS   gates rules route unack flows flights
-- ARGV   wake channel, required prefix of `route`, flow, then its rate, burst, parallel and pause: "" keeps each, "-"
--        removes it, so that the setting of the route holds; a pause is who pauses it, a line feed, and why
-- reply  1 if something changed, otherwise 0; error `PUNCTUAL unregistered <text>`, nothing written, when the partition
--        is not open
local gates, rules, route, unack, flows, flights = unpack(KEYS)
local channel, layout, name = unpack(ARGV)
-- Leases that one command reads. `max_in_flight` of the instances bounds them all.
local READ_AT_ONCE = 1000

local refusal = closed(route, layout)
if refusal then return refusal end

local was = redis.call('HGET', rules, name)
local now = math.floor(clock() / 1000)
local rate, burst, parallel, pause = string.match(was or '- - - -', '^(%S+) (%S+) (%S+) (.*)$')
local function changed(old, new) return new == '' and old or new end
rate, burst, parallel = changed(rate, ARGV[4]), changed(burst, ARGV[5]), changed(parallel, ARGV[6])
if ARGV[7] == '-' then
  pause = '-'
elseif ARGV[7] ~= '' and string.match(pause, '^%d+\n(.*)$') ~= ARGV[7] then
  -- A pause by the same name with the same note keeps its time.
  pause = whole(now) .. '\n' .. ARGV[7]
end
local text = table.concat({ rate, burst, parallel, pause }, ' ')
if text == (was or '- - - -') then return 0 end

-- The first write needs no memory: at maxmemory Redis refuses only the first write of a script, and pausing must work.
local steps = { { { 'HDEL', rules, '' }, {} } }
if text == '- - - -' then
  add(steps, 'HDEL', rules, { name }, { { 'HSET', rules, name, was } })
else
  add(steps, 'HSET', rules, { name, text }, { was and { 'HSET', rules, name, was } or { 'HDEL', rules, name } })
end
-- From now on its messages in flight are counted. Those that were claimed before are counted too.
local counts_anew = string.match(was or '- - - -', '^%S+ %S+ (%S+)') == '-' and parallel ~= '-'
local leases = counts_anew and redis.call('ZRANGE', unack, '0', '-1') or {}
for first = 1, #leases, READ_AT_ONCE do
  local ids, members = { unpack(leases, first, math.min(first + READ_AT_ONCE - 1, #leases)) }, {}
  for i, value in ipairs(redis.call('HMGET', flows, unpack(ids))) do
    if flow_of(value) == name then members[#members + 1] = name .. '\0' .. ids[i] end
  end
  local missing = { 'ZADD', flights }
  for i, score in ipairs(#members > 0 and redis.call('ZMSCORE', flights, unpack(members)) or {}) do
    if not score then missing[#missing + 1], missing[#missing + 2] = '0', members[i] end
  end
  insert(steps, missing)
end
-- A claim looks at its parked messages now.
local gate = redis.call('ZSCORE', gates, name)
if gate then add(steps, 'ZADD', gates, { whole(now), name }, {}) end
local failed = commit(steps)
if failed then return failed end
if gate then wake(channel) end
return 1

-- include clock commit layout scores wake
-- Changes the rules of one flow, or pauses or resumes it.
--
-- KEYS   gates rules route
-- ARGV   wake channel, required prefix of `route`, flow, then its rate, burst, parallel and pause: "" keeps each, "-"
--        removes it, so that the setting of the route holds; a pause is who pauses it, a line feed, and why
-- reply  1 if something changed, otherwise 0; error `PUNCTUAL unregistered <text>`, nothing written, when the partition
--        is not open
local gates, rules, route = unpack(KEYS)
local channel, layout, name = unpack(ARGV)

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
-- A claim looks at its parked messages now.
local gate = redis.call('ZSCORE', gates, name)
if gate then add(steps, 'ZADD', gates, { whole(now), name }, {}) end
local failed = commit(steps)
if failed then return failed end
if gate then wake(channel) end
return 1

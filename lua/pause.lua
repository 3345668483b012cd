-- include clock commit layout scores wake
-- Stops or restarts claiming, for every instance.
--
-- KEYS   paused route
-- ARGV   wake channel, required prefix of `route` ("": any value), "pause" | "resume", who pauses it, and why
-- reply  1; error `PUNCTUAL unregistered <text>`, nothing written, when the partition is not open
local paused, route = unpack(KEYS)
local channel, layout, action, by, note = unpack(ARGV)

local refusal = closed(route, layout)
if refusal then return refusal end

-- A write that needs no memory comes first: at maxmemory Redis refuses only the first write of a script, and pausing
-- must work.
local was = redis.call('GET', paused)
local steps = { { { 'DEL', paused }, was and { { 'SET', paused, was } } or {} } }
if action == 'pause' then
  -- Three lines: the time in ms, who, and why.
  add(steps, 'SET', paused, { whole(math.floor(clock() / 1000)) .. '\n' .. by .. '\n' .. note }, {})
end
local failed = commit(steps)
if failed then return failed end
if action == 'resume' then wake(channel) end
return 1

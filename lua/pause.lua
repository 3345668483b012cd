-- include clock commit scores wake
-- Stops or restarts claiming, for every instance.
--
-- KEYS   paused
-- ARGV   wake channel, "pause" | "resume", who pauses it, and why
-- reply  1
local paused = KEYS[1]
local channel, action, by, note = unpack(ARGV)

-- The shrinking write first: at maxmemory only a script's first write is refused, and pausing must work.
local was = redis.call('GET', paused)
local steps = { { { 'DEL', paused }, was and { { 'SET', paused, was } } or {} } }
if action == 'pause' then
  -- The time in ms, and who and why on lines of their own.
  add(steps, 'SET', paused, { whole(math.floor(clock() / 1000)) .. '\n' .. by .. '\n' .. note }, {})
end
local failed = commit(steps)
if failed then return failed end
if action == 'resume' then wake(channel) end
return 1

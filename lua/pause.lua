-- include commit wake
-- Stops or restarts claiming, for every instance.
--
-- KEYS   paused
-- ARGV   wake channel, "pause" | "resume"
-- reply  1
local paused = KEYS[1]
local channel, action = ARGV[1], ARGV[2]

-- The shrinking write first: at maxmemory only a script's first write is refused, and pausing must work.
local was = redis.call('GET', paused)
local steps = { { { 'DEL', paused }, was and { { 'SET', paused, was } } or {} } }
if action == 'pause' then add(steps, 'SET', paused, { '1' }, {}) end
local failed = commit(steps)
if failed then return failed end
if action == 'resume' then wake(channel) end
return 1

-- include clock commit layout scores wake
-- Stops or restarts claiming, for every instance.
--
-- KEYS   paused route
-- ARGV   wake channel, required prefix of `route` ("": any value), "pause" | "resume", who pauses it, and why
-- reply  1 if something changed, otherwise 0 (a pause by the same name with the same note keeps its time); error
--        `PUNCTUAL unregistered <text>`, nothing written, when the partition is not open
local paused, route = unpack(KEYS)
local channel, layout, action, by, note = unpack(ARGV)

local refusal = closed(route, layout)
if refusal then return refusal end

local was = redis.call('GET', paused)
local text = action == 'pause' and '\n' .. by .. '\n' .. note
-- After its time, the pause has the same text.
local is_same = text and was and string.match(was, '^%d*(\n.*)$') == text
if is_same or not text and not was then return 0 end

-- A write that needs no memory comes first: at maxmemory Redis refuses only the first write of a script, and pausing
-- must work.
local steps = { { { 'DEL', paused }, was and { { 'SET', paused, was } } or {} } }
if text then
  -- Three lines: the time in ms, who, and why.
  add(steps, 'SET', paused, { whole(math.floor(clock() / 1000)) .. text }, {})
end
local failed = commit(steps)
if failed then return failed end
if not text then wake(channel) end
return 1

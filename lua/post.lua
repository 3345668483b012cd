-- include clock commit scores selection
-- Puts selected dead letters into the outbox (outbox.lua), from which they are forwarded.
--
-- KEYS   outbox dead errors groups [flows]
-- ARGV   limit (0 to 1000), 1 to count only, otherwise 0, then the selection (selection.lua)
-- reply  as in redrive.lua
local outbox, dead, errors, groups, flows = unpack(KEYS)
local limit, is_dry = tonumber(ARGV[1]), ARGV[2] == '1'
local now = math.floor(clock() / 1000)
local ids, scores, selected, rest, before = selection(dead, errors, flows, groups, 3, now)
local posted = {}
for n = 1, math.min(#selected, limit) do
  posted[2 * n - 1], posted[2 * n] = whole(now), ids[selected[n]]
end
if not is_dry then
  local steps = {}
  if #posted > 0 then add(steps, 'ZADD', outbox, { 'NX', unpack(posted) }, {}) end
  local failed = commit(steps)
  if failed then return failed end
end
return progress(ids, scores, selected, #posted / 2, rest, before)

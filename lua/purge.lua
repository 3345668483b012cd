-- include bodies clock commit fields groups selection
-- Deletes dead messages.
--
-- KEYS   messages attempts errors dead records groups grouped [flows]
-- ARGV   limit (0 to 1000), 1 to count only, otherwise 0, then the selection (selection.lua)
-- reply  as in redrive.lua
local messages, attempts, errors, dead, records = unpack(KEYS)
local groups, flows = group_keys(KEYS, 6), KEYS[8]
local limit, is_dry = tonumber(ARGV[1]), ARGV[2] == '1'

local ids, scores, selected, rest, before = selection(dead, errors, flows, groups.groups, 3, math.floor(clock() / 1000))
local purged, back = {}, { 'ZADD', dead }
for n = 1, math.min(#selected, limit) do
  local i = selected[n]
  purged[n] = ids[i]
  back[#back + 1], back[#back + 2] = scores[i], ids[i]
end
if not is_dry then
  local steps = {}
  add(steps, 'ZREM', dead, purged, { back })
  drop(steps, records, purged)
  if flows then drop(steps, flows, purged) end
  delete(steps, attempts, errors, messages, groups, purged)
  local failed = commit(steps)
  if failed then return failed end
end
return progress(ids, scores, selected, #purged, rest, before)

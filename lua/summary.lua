-- include failures filter
-- Counts dead messages by reason.
--
-- KEYS   dead errors groups [flows]
-- ARGV   a filter with the place (filter.lua)
-- reply  1 if more follow, otherwise 0, score and id of the last one considered or "", then for each reason: reason or
--        "", count, first and last death (ms), id and error of the last one
local dead, errors, groups, flows = unpack(KEYS)

local ids, scores, values, matches, rest = matching(dead, errors, flows, groups, 1)
local groups, order = {}, {}
for _, i in ipairs(matches) do
  local _, text = failed(values[i])
  local reason, shown = string.match(text, '^(%l+): (.*)$')
  reason = reason or ''
  local group = groups[reason]
  if not group then
    group = { reason, 0, tonumber(scores[i]) }
    groups[reason], order[#order + 1] = group, group
  end
  group[2], group[4], group[5], group[6] = group[2] + 1, tonumber(scores[i]), ids[i], shown or text
end
local reply = { rest > 0 and 1 or 0, scores[#ids] and tonumber(scores[#ids]) or '', ids[#ids] or '' }
for _, group in ipairs(order) do
  for n = 1, 6 do reply[#reply + 1] = group[n] end
end
return reply

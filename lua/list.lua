-- include clock filter weight
-- Returns a page of one set after a place, by score and id.
--
-- KEYS   set messages errors groups [flows]; the set is pending, unack or dead
-- ARGV   limit (1 to 1000), maximum bytes of ids, errors and bodies, then a filter with the place (filter.lua)
-- reply  now (ms), number considered, 1 if more follow, otherwise 0, score and id of the last one considered or "", then
--        for each match: id, score, value of `errors` or "", body or ""
--
-- The first message is returned at any size.
local set, messages, errors, groups, flows = unpack(KEYS)
local limit, max_bytes = tonumber(ARGV[1]), tonumber(ARGV[2])

local ids, scores, values, matches, rest = matching(set, errors, flows, groups, 3)
local listed, bytes, reached = {}, 0, #ids
for n, i in ipairs(matches) do
  local body, value = redis.call('HGET', messages, ids[i]) or '', values[i] or ''
  bytes = bytes + #ids[i] + #value + weight(body)
  if n > limit or (bytes > max_bytes and n > 1) then
    reached = i - 1
    break
  end
  local at = #listed
  listed[at + 1], listed[at + 2], listed[at + 3], listed[at + 4] = ids[i], tonumber(scores[i]), value, body
end
local more = (reached < #ids or rest > 0) and 1 or 0
return { math.floor(clock() / 1000), reached, more, tonumber(scores[reached]) or '', ids[reached] or '', unpack(listed) }

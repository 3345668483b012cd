-- include filter scores
-- Selects dead messages for a bulk call.
--
-- ARGV from `first` on: "ids", `before` (a score; "": any), then at most 1000 ids; or "where", then a filter
-- (filter.lua). A filter without `before` selects messages that died up to now.
-- Returns the ids considered, their scores, the indexes of the selected ids, the number of members after these ids that
-- were not considered, and `before`, or without it the next millisecond.
local function selection(dead, errors, flows, groups, first, now)
  if ARGV[first] == 'where' then
    if ARGV[first + 3] == '' then ARGV[first + 3] = whole(now + 1) end
    local ids, scores, _, selected, rest = matching(dead, errors, flows, groups, first + 1)
    return ids, scores, selected, rest, tonumber(ARGV[first + 3])
  end
  local before = tonumber(ARGV[first + 1])
  local ids, selected, seen = { unpack(ARGV, first + 2) }, {}, {}
  local scores = redis.call('ZMSCORE', dead, unpack(ids))
  for i, id in ipairs(ids) do
    if scores[i] and (not before or tonumber(scores[i]) < before) and not seen[id] then
      seen[id] = true
      selected[#selected + 1] = i
    end
  end
  return ids, scores, selected, 0, before or now + 1
end

-- The reply of the script: `done`, the number of `selected` that were processed; the number considered; 1 if more
-- follow, otherwise 0; `before`; and the place reached.
local function progress(ids, scores, selected, done, rest, before)
  local reached = done < #selected and selected[done + 1] - 1 or #ids
  local more = reached < #ids or rest > 0
  return { done, reached, more and 1 or 0, before, scores[reached] or '', ids[reached] or '' }
end

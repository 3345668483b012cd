-- include failures flow_value places
-- Finds the members of a sorted set after a place that match a filter.
--
-- ARGV from `first` on: maximum number of members to consider (1 to 1000), since and before (scores), reason of death,
-- text in the error ("" in each of these four: any), 1 to match only members with failed attempts, otherwise 0, flow
-- ("": any, "@": the empty one), group ("": any), order by score and id ("asc" | "desc"), then the place: score and id,
-- or nothing. `flows`: its key, on a route with flows.
-- Returns the ids considered, their scores, their values of `errors`, the indexes of the matches, and the number of
-- members after these ids that were not considered.
local function matching(set, errors, flows, groups, first)
  local most, since, until_score, reason, text, retried, name, group, order, score, id = unpack(ARGV, first)
  local is_reversed = order == 'desc'
  local from = score and not is_reversed and rank_after(set, tonumber(score), id) or 0
  if since ~= '' then from = math.max(from, redis.call('ZCOUNT', set, '-inf', '(' .. since)) end
  local to = until_score == '' and redis.call('ZCARD', set) or redis.call('ZCOUNT', set, '-inf', '(' .. until_score)
  if score and is_reversed then to = math.min(to, rank_after(set, tonumber(score), id, true)) end
  local ids, scores, matches = {}, {}, {}
  if to <= from then return ids, scores, {}, matches, 0 end
  local low, high = from, math.min(from + most, to) - 1
  if is_reversed then
    low, high = math.max(from, to - most), to - 1
  end
  local found = redis.call('ZRANGE', set, low, high, 'WITHSCORES')
  local count = #found / 2
  for n = 1, count do
    local i = is_reversed and count - n + 1 or n
    ids[n], scores[n] = found[2 * i - 1], found[2 * i]
  end
  local values = redis.call('EXISTS', errors) == 1 and redis.call('HMGET', errors, unpack(ids)) or {}
  local is_one_flow = name ~= ''
  local own = is_one_flow and flows and redis.call('HMGET', flows, unpack(ids)) or {}
  if name == '@' then name = '' end
  local group_of = group ~= '' and redis.call('HMGET', groups, unpack(ids)) or {}
  for i in ipairs(ids) do
    local failures, shown = failed(values[i])
    if
      (reason == '' or string.sub(shown, 1, #reason + 2) == reason .. ': ')
      and (text == '' or string.find(shown, text, 1, true))
      and (retried == '0' or failures > 0)
      and (not is_one_flow or flow_of(own[i]) == name)
      and (group == '' or group_of[i] == group)
    then
      matches[#matches + 1] = i
    end
  end
  return ids, scores, values, matches, to - from - #ids
end

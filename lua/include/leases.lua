-- include members
-- Adds to `verdicts` for each id '1' if `token` is its current lease, otherwise '0'. `seen` has the ids that were named
-- before: a lease that is named twice in one call is stale the second time. Returns true if there are several ids and
-- no others have the token, so that a range of scores removes them.
local function held(unack, token, ids, seen, verdicts)
  local n, current = #verdicts, 0
  local all, scores = #ids > 1 and redis.call('ZCOUNT', unack, token, token) == #ids, {}
  if all then
    -- Reading one range is cheaper than reading the score of each id.
    local members = {}
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', unack, token, token)) do members[id] = token end
    for i = 1, #ids do scores[i] = members[ids[i]] end
  else
    scores = redis.call('ZMSCORE', unack, unpack(ids))
  end
  for i = 1, #ids do
    local score, id = scores[i], ids[i]
    -- Servers write integer scores in the same form. The numbers are compared too, in case a server does not.
    if score and not seen[id] and (score == token or tonumber(score) == tonumber(token)) then
      seen[id], current, verdicts[n + i] = true, current + 1, '1'
    else
      verdicts[n + i] = '0'
    end
  end
  return all and current == #ids
end

-- Adds the steps that remove leases: those in `ranges`, each { token, all ids that have it }, and those in `moves`, a
-- ZREM, with their `tokens`.
local function end_leases(steps, unack, ranges, moves, tokens)
  for _, range in ipairs(ranges) do
    local token, ids = unpack(range)
    remove_range(steps, { 'ZREMRANGEBYSCORE', unack, token, token }, ids, token)
  end
  remove(steps, moves, tokens)
end

-- include members
-- For each id, '1' when `token` is its current lease, else '0', added to `verdicts`. An id that is in `seen` was named
-- before: a lease named twice in one call is stale the second time. Returns whether the ids are all that have the token.
local function held(unack, token, ids, seen, verdicts)
  local n, current = #verdicts, 0
  local all, scores = #ids > 1 and redis.call('ZCOUNT', unack, token, token) == #ids, {}
  if all then
    -- One range is cheaper than the score of each.
    local members = {}
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', unack, token, token)) do members[id] = token end
    for i = 1, #ids do scores[i] = members[ids[i]] end
  else
    scores = redis.call('ZMSCORE', unack, unpack(ids))
  end
  for i = 1, #ids do
    local score, id = scores[i], ids[i]
    -- Servers write integers alike. The numbers are compared as well, in case one does not.
    if score and not seen[id] and (score == token or tonumber(score) == tonumber(token)) then
      seen[id], current, verdicts[n + i] = true, current + 1, '1'
    else
      verdicts[n + i] = '0'
    end
  end
  return all and current == #ids
end

-- Adds the steps that remove leases: `ranges` of { token, all ids that have it }, and those of `moves`, a ZREM, with
-- their tokens.
local function end_leases(steps, unack, ranges, moves, tokens)
  for _, range in ipairs(ranges) do
    local token, ids = unpack(range)
    remove_range(steps, { 'ZREMRANGEBYSCORE', unack, token, token }, ids, token)
  end
  remove(steps, moves, tokens)
end

-- For each id, '1' when `token` is its current lease, else '0', added to `verdicts`. An id that is in `seen` was named
-- before: a lease named twice in one call is stale the second time.
local function held(unack, token, ids, seen, verdicts)
  local scores, n = redis.call('ZMSCORE', unack, unpack(ids)), #verdicts
  for i = 1, #ids do
    local score, id = scores[i], ids[i]
    -- Servers write integers alike. The numbers are compared as well, in case one does not.
    local current = score and not seen[id] and (score == token or tonumber(score) == tonumber(token))
    if current then seen[id] = true end
    verdicts[n + i] = current and '1' or '0'
  end
end

-- For each id, 1 when tokens[i] is its current lease, else 0. A lease named twice in one call is stale the second time.
local function held(unack, ids, tokens)
  local scores = redis.call('ZMSCORE', unack, unpack(ids))
  local verdicts, seen = {}, {}
  for i, id in ipairs(ids) do
    local current = scores[i] and not seen[id] and tonumber(scores[i]) == tonumber(tokens[i])
    if current then seen[id] = true end
    verdicts[i] = current and 1 or 0
  end
  return verdicts
end

-- How and when (ms) a message was completed, by its score in `remembered`; nothing if that is more than `keep` ms ago.
local function ending(score, keep, now)
  if not score or tonumber(score) < now - keep then return end
  local at = math.floor(tonumber(score))
  return at < tonumber(score) and 'cancelled' or 'delivered', at
end

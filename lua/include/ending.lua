-- How a message was completed, and when in ms, by its score in `remembered`; nothing after `keep` ms.
local function ending(score, keep, now)
  if not score or tonumber(score) < now - keep then return end
  local at = math.floor(tonumber(score))
  return at < tonumber(score) and 'cancelled' or 'delivered', at
end

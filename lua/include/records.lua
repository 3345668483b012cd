-- Applies `record`, "<offset> <timestamp ms> <place>", to `stored`, the value of `records` for an id, or false. Returns
-- the new value, or nothing if the record was applied before: the source read that place again. A smaller offset with a
-- later timestamp is of a new log. The value keeps the latest timestamp, as those of a log need not ascend.
local function newer(record, stored)
  local offset, at, place = string.match(record, '^(%d+) (%d+) (.+)$')
  local last, latest, same = string.match(stored or '', '^(%d+) (%d+) (.+)$')
  if place ~= same then return record end
  if tonumber(offset) <= tonumber(last) and tonumber(at) <= tonumber(latest) then return end
  return offset .. ' ' .. (tonumber(at) > tonumber(latest) and at or latest) .. ' ' .. place
end

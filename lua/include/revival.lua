-- include commit
-- Adds the step that removes ids from `remembered`: they are live again.
local function revive(steps, remembered, ids)
  if #ids == 0 or redis.call('EXISTS', remembered) == 0 then return end
  local revived, back = {}, { 'ZADD', remembered }
  for i, score in ipairs(redis.call('ZMSCORE', remembered, unpack(ids))) do
    if score then
      revived[#revived + 1] = ids[i]
      back[#back + 1], back[#back + 2] = score, ids[i]
    end
  end
  add(steps, 'ZREM', remembered, revived, { back })
end

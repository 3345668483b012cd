-- include scores
-- The key `bytes`: the sum of the sizes of the bodies that are pending or in flight, absent when it is 0.

-- Adds the step that adds `more` to `bytes`.
local function grow(steps, bytes, more)
  if more == 0 then return end
  local was = redis.call('GET', bytes)
  local is = math.max(0, (tonumber(was) or 0) + more)
  local undo = { was and { 'SET', bytes, was } or { 'DEL', bytes } }
  steps[#steps + 1] = { is > 0 and { 'SET', bytes, whole(is) } or { 'DEL', bytes }, undo }
end

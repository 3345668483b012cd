-- The flow in a value of `flows`.
local function name_of(value) return string.sub(value, string.find(value, ' ', 1, true) + 1) end

-- The flow and the number in a value of `flows`. A message that was accepted before the route had flows has the empty
-- flow.
local function flow_of(value)
  local number, name = string.match(value or '0 ', '^(%S+) (.*)$')
  return name, number
end

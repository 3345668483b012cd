-- include flow history
-- Keys that only some routes have, behind the others of a script: [outbox] of a route that forwards its dead letters
-- (outbox.lua), [history] of a route that keeps what became of its messages (history.lua), [flow] of one with flows. They
-- are 1, 2 and 6 keys, so their number tells which of them are there.

-- Those among `keys` from place `first` on. `limits`: of the history (history.lua), if the script needs them.
local function optional_keys(keys, first, limits)
  local number, outbox, history = #keys - first + 1, nil, nil
  if number % 6 % 2 == 1 then
    outbox, first = keys[first], first + 1
  end
  if number % 6 >= 2 then
    history, first = { blocks = keys[first], ended = keys[first + 1] }, first + 2
    if limits then limited_history(history, limits) end
  end
  return outbox, history, flow_keys(keys, first)
end

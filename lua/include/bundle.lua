-- Bytes and parts of replies after which the rest of the calls is left undone: the caller makes them again.
local MAX_BYTES, MAX_PARTS = 1024 * 1024, 2000

-- Makes several calls of a script in one. `transition(KEYS, ARGV)` is the script.
--
-- KEYS   those of the first call, then of the next...
-- ARGV   for each call: number of its keys, number of its arguments, its arguments
-- reply  for each call: its reply, an array; or its error as a string, which has no effect on the others; or nothing
--        when it was left undone
local function bundle(transition)
  local replies, key, argument, bytes, parts = {}, 0, 1, 0, 0
  while argument < #ARGV do
    local keys, arguments = {}, {}
    for i = 1, tonumber(ARGV[argument]) do keys[i] = KEYS[key + i] end
    for i = 1, tonumber(ARGV[argument + 1]) do arguments[i] = ARGV[argument + 1 + i] end
    key, argument = key + #keys, argument + 2 + #arguments
    local reply = false
    if bytes <= MAX_BYTES and parts <= MAX_PARTS then
      local _, result = pcall(transition, keys, arguments)
      reply = type(result) == 'table' and result.err or result
      if type(reply) == 'table' then
        parts = parts + #reply
        for _, part in ipairs(reply) do
          if type(part) == 'string' then bytes = bytes + #part end
        end
      end
    end
    replies[#replies + 1] = reply
  end
  return replies
end

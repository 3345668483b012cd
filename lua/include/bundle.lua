-- Bytes and messages in the replies after which the remaining calls are not made: the caller repeats them.
local MAX_BYTES, MAX_MESSAGES = 1024 * 1024, 700

-- Makes several calls of a script in one. `transition(KEYS, ARGV)` is the script. Its reply begins with the number of
-- its messages, or with a string that has a character for each message. An optional second value is the number of bytes
-- in large strings of the reply.
--
-- KEYS   the keys of the first call, then those of the next...
-- ARGV   for each call: number of its keys, number of its arguments, its arguments
-- reply  for each call: its reply, an array; or its error as a string, which does not affect the other calls; or
--        nothing when the call was not made
local function bundle(transition)
  local replies, key, argument, bytes, messages = {}, 0, 0, 0, 0
  while argument < #ARGV do
    local keys, arguments = tonumber(ARGV[argument + 1]), tonumber(ARGV[argument + 2])
    argument = argument + 2
    local reply = false
    if bytes <= MAX_BYTES and messages <= MAX_MESSAGES then
      local own = { unpack(KEYS, key + 1, key + keys) }
      local _, result, size = pcall(transition, own, { unpack(ARGV, argument + 1, argument + arguments) })
      reply = type(result) == 'table' and result.err or result
      if type(reply) == 'table' then
        local first = reply[1]
        messages = messages + (type(first) == 'string' and #first or first)
        bytes = bytes + (size or 0)
      end
    end
    key, argument = key + keys, argument + arguments
    replies[#replies + 1] = reply
  end
  return replies
end

-- Makes the call of one script, and then that of another one, in one.
--
-- KEYS   those of the first, then of the second
-- ARGV   number of the first one's keys, number of its arguments, its arguments, then those of the second
-- reply  that of the first; that of the second, or its error as a string, when it did nothing. An error of the first is that
--        of both, and the second is not made.
local function sequence(first, second)
  local keys, arguments = tonumber(ARGV[1]), tonumber(ARGV[2])
  local done = first({ unpack(KEYS, 1, keys) }, { unpack(ARGV, 3, arguments + 2) })
  if done.err then return done end
  local _, reply = pcall(second, { unpack(KEYS, keys + 1) }, { unpack(ARGV, arguments + 3) })
  return { done, type(reply) == 'table' and reply.err or reply }
end

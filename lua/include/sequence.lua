-- Makes a call of one script and a call of a second script in one.
--
-- KEYS   the keys of the first script, then those of the second
-- ARGV   number of keys of the first script, number of its arguments, its arguments, then those of the second
-- reply  the reply of the first; then the reply of the second, or its error as a string, in which case it did nothing.
--        If the first returns an error, that is the whole reply, and the second is not called.
local function sequence(first, second)
  local keys, arguments = tonumber(ARGV[1]), tonumber(ARGV[2])
  local done = first({ unpack(KEYS, 1, keys) }, { unpack(ARGV, 3, arguments + 2) })
  if done.err then return done end
  local _, reply = pcall(second, { unpack(KEYS, keys + 1) }, { unpack(ARGV, arguments + 3) })
  return { done, type(reply) == 'table' and reply.err or reply }
end

-- include clock commit fields history
-- Deletes the ends of a history that are too many or too old, or all of them.
--
-- KEYS   history ended
-- ARGV   limits of the history ("": none, all are deleted; see history.lua)
-- reply  number of ends that are kept, 1 if more must be deleted, otherwise 0
if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then return { 0, 0 } end
local history = { blocks = KEYS[1], ended = KEYS[2] }
local all = { { { 'UNLINK', KEYS[1], KEYS[2] }, {} } }
if ARGV[1] == '' then return commit(all) or { 0, 0 } end
limited_history(history, ARGV[1])
local text = redis.call('HGET', history.blocks, '')
local following, first, last = state_of(text)
redis.call('ZCARD', history.ended)
local oldest = math.floor(clock() / 1000) - history.age
if last < oldest then return commit(all) or { 0, 0 } end
local numbers, texts = old_blocks(history, first, following, oldest, math.floor(following / BLOCK))
if #numbers == 0 then return { following - first, 0 } end
local kept_from = first / BLOCK + #numbers
-- The first write needs no memory: at maxmemory Redis refuses only the first write of a script.
local steps = { { { 'ZREM', history.ended, '' }, {} } }
local state = string.format('%.0f %.0f %.0f', following, kept_from * BLOCK, last)
put(steps, { 'HSET', history.blocks, '', state }, { text })
delete_blocks(steps, history, numbers, texts, kept_from)
local failed = commit(steps)
if failed then return failed end
return { following - kept_from * BLOCK, 1 }

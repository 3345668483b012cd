-- include groups weight
-- Returns live messages of a group, in order of their ids.
--
-- KEYS   pending unack dead messages errors groups grouped
-- ARGV   group, the id after which the page begins, limit (1 to 1000), maximum bytes of ids, errors and bodies; "ids":
--        without errors and bodies
-- reply  1 if more follow, otherwise 0; then for each message: id, state (pending | unack | dead), score, value
--        of `errors` or "", body or ""; the last two not after "ids"
--
-- The first message is returned at any size.
local sets, messages, errors, groups = { unpack(KEYS, 1, 3) }, KEYS[4], KEYS[5], group_keys(KEYS, 6)
local limit, max_bytes = tonumber(ARGV[3]), tonumber(ARGV[4])
local STATES = { 'pending', 'unack', 'dead' }

local ids = ids_of_group(groups, ARGV[1], ARGV[2], ARGV[3])
local more = #ids == limit and 1 or 0
local scores = {}
for n, set in ipairs(#ids > 0 and sets or {}) do scores[n] = redis.call('ZMSCORE', set, unpack(ids)) end
local reply, bytes = { more }, 0
for i, id in ipairs(ids) do
  local body, value
  if max_bytes then
    body, value = redis.call('HGET', messages, id) or '', redis.call('HGET', errors, id) or ''
    bytes = bytes + #id + #value + weight(body)
    if bytes > max_bytes and i > 1 then
      reply[1] = 1
      break
    end
  end
  -- An id in no set is restored soon (restore.lua).
  local state, score = 'pending', 0
  for n in ipairs(sets) do
    if scores[n][i] then state, score = STATES[n], tonumber(scores[n][i]) end
  end
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4], reply[at + 5] = id, state, score, value, body
end
return reply

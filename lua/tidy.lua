-- include clock commit flow flow_value members places scores wake
-- Repairs the flows of a partition after a script failed midway and could not undo its first steps, or after keys were
-- deleted by hand: no message is parked where no claim looks for it, and no flow is busy without a message.
--
-- KEYS   pending unack [flow]
-- ARGV   wake channel, 1 if the flows are ordered, otherwise 0, the part that is looked at: "flights" or "parked",
--        cursor ("" in the first call), number of messages to look at
-- reply  number of repairs; the next cursor, or "" at the end
local pending, unack = KEYS[1], KEYS[2]
local flow = flow_keys(KEYS, 3)
local channel, ordered, part, cursor, count = ARGV[1], ARGV[2] == '1', ARGV[3], ARGV[4], tonumber(ARGV[5])

local now = math.floor(clock() / 1000)
local steps, names, repairs, next_cursor = { { { 'ZREM', pending, '' }, {} } }, {}, 0, ''
if part == 'flights' then
  local from = cursor == '' and '-' or '(' .. cursor
  local found = redis.call('ZRANGEBYLEX', flow.flights, from, '+', 'LIMIT', '0', whole(count))
  local ended = { 'ZREM', flow.flights }
  for _, member in ipairs(found) do
    local border = string.find(member, '%z')
    local name, id = string.sub(member, 1, border - 1), string.sub(member, border + 1)
    local score = not redis.call('ZSCORE', unack, id) and ordered and redis.call('ZSCORE', pending, id)
    local holds = score and not select(2, due_by(score))
    if not holds and not redis.call('ZSCORE', unack, id) then
      ended[#ended + 1], names[#names + 1], repairs = member, name, repairs + 1
    end
  end
  remove(steps, ended, '0')
  next_cursor = #found == count and found[#found] or ''
else
  -- Many messages can have one due time.
  local score, after = string.match(cursor, '^(%S+) (.*)$')
  local rank = score and rank_after(pending, tonumber(score), after)
    or redis.call('ZCARD', pending) - redis.call('ZCOUNT', pending, whole(PARKED), '+inf')
  local found = redis.call('ZRANGE', pending, whole(rank), whole(rank + count - 1), 'WITHSCORES')
  local dues, back = { 'ZADD', pending }, { 'ZADD', pending }
  for i = 1, #found, 2 do
    local id, due = found[i], due_by(found[i + 1])
    local name, number = flow_of(redis.call('HGET', flow.flows, id))
    local gate = redis.call('ZSCORE', flow.gates, name)
    local is_known = gate and redis.call('ZSCORE', flow.waiting, place_in(name, due, number, id))
    if not is_known then
      -- The next claim parks it again if need be.
      dues[#dues + 1], dues[#dues + 2] = whole(due), id
      back[#back + 1], back[#back + 2] = found[i + 1], id
      repairs = repairs + 1
    elseif gate == 'inf' then
      local from_name, to_name = '[' .. name .. '\0', '(' .. name .. '\1'
      local is_paused = string.match(redis.call('HGET', flow.rules, name) or '', '^%S+ %S+ %S+ %d')
      if redis.call('ZLEXCOUNT', flow.flights, from_name, to_name) == 0 and not is_paused then
        names[#names + 1], repairs = name, repairs + 1
      end
    end
  end
  write(steps, dues, { back })
  next_cursor = #found / 2 == count and found[#found] .. ' ' .. found[#found - 1] or ''
end
if repairs == 0 then return { 0, next_cursor } end
local opened = { 'ZADD', flow.gates, 'XX' }
for _, name in ipairs(names) do opened[#opened + 1], opened[#opened + 2] = whole(now), name end
if #names > 0 then steps[#steps + 1] = { opened, {} } end
local failed = commit(steps)
if failed then return failed end
wake(channel)
return { repairs, next_cursor }

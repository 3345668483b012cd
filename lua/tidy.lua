-- include clock commit flow flow_value members places rates scores wake
-- Repairs the flows of a partition after a script failed midway and could not undo its first steps, or after keys were
-- deleted by hand: no message is parked where no claim looks for it, no flow is busy without a message, and messages in
-- flight are counted where `parallel` or order asks for it.
--
-- KEYS   pending unack [flow]
-- ARGV   wake channel, settings of the flows (rates.lua), the part that is looked at: "leases", "flights" or "parked",
--        cursor ("" in the first call), number of messages to look at
-- reply  number of repairs; the next cursor, or "" at the end
local pending, unack = KEYS[1], KEYS[2]
local flow = flow_keys(KEYS, 3)
local channel, settings, part, cursor, count = ARGV[1], flow_settings(ARGV[2]), ARGV[3], ARGV[4], tonumber(ARGV[5])
local ordered = settings.ordered

local steps, names, repairs, next_cursor = { { { 'ZREM', pending, '' }, {} } }, {}, 0, ''
if part == 'leases' then
  local common = rules_of(settings)
  -- Usually either all flows are counted or none.
  if not is_counted(common) and redis.call('EXISTS', flow.rules) == 0 then return { 0, '' } end
  local score, after = string.match(cursor, '^(%S+) (.*)$')
  local rank = score and rank_after(unack, tonumber(score), after) or 0
  local found = redis.call('ZRANGE', unack, whole(rank), whole(rank + count - 1), 'WITHSCORES')
  local ids, its_flow, members = {}, {}, {}
  for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
  if #ids > 0 then
    for i, value in ipairs(redis.call('HMGET', flow.flows, unpack(ids))) do its_flow[i] = flow_of(value) end
    local own = own_rules(flow, its_flow)
    for i, name in ipairs(its_flow) do
      if is_counted(own[i] and rules_of(settings, own[i]) or common) then members[#members + 1] = name .. '\0' .. ids[i] end
    end
  end
  local missing = { 'ZADD', flow.flights }
  for i, known in ipairs(#members > 0 and redis.call('ZMSCORE', flow.flights, unpack(members)) or {}) do
    if not known then missing[#missing + 1], missing[#missing + 2], repairs = '0', members[i], repairs + 1 end
  end
  insert(steps, missing)
  next_cursor = #ids == count and found[#found] .. ' ' .. ids[#ids] or ''
elseif part == 'flights' then
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
local now = #names > 0 and math.floor(clock() / 1000)
local opened = { 'ZADD', flow.gates, 'XX' }
for _, name in ipairs(names) do opened[#opened + 1], opened[#opened + 2] = whole(now), name end
if #names > 0 then steps[#steps + 1] = { opened, {} } end
local failed = commit(steps)
if failed then return failed end
wake(channel)
return { repairs, next_cursor }

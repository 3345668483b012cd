-- include bodies bytes cancelled clock commit flow groups optional recurring remembered sizes wake
-- Cancels pending messages: the named ones, those of a group, or all in order of due time. Messages in flight and
-- schedules stay.
--
-- KEYS   pending unack messages attempts errors remembered records bytes schedules groups grouped [history] [flow]
-- ARGV   wake channel, time to remember the ids (ms), maximum number of remembered ids, limit (1 to 1000; any to
--        count), 1 to count only, otherwise 0, limits of the history ("": none; see history.lua), name of the token ("":
--        none), then "all" | "ids", the time before which they must have been accepted or moved last (ms; "": any), the
--        ids (at most 1000) | "group", a group, the id after which its messages are looked at (at most as many as the
--        limit)
-- reply  number cancelled, or that would be; number of the other pending messages among those asked for; for a group, in
--        place of the latter: the last id that was looked at if more follow, otherwise "", then the ids in flight
local pending, unack, messages, attempts, errors, remembered, records, bytes, schedules = unpack(KEYS)
local channel, keep, max = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local limit, is_dry = tonumber(ARGV[4]), ARGV[5] == '1'
local groups = group_keys(KEYS, 10)
local _, history, flow = optional_keys(KEYS, 12, ARGV[6])
local what, FIRST = ARGV[8], 9

local function was_before(messages, id, time)
  local body = redis.call('HGET', messages, id) or ''
  return #body < 17 or struct.unpack('>I8', body, 10) < time
end

local cancelled, scores, back, rest, in_flight = {}, {}, { 'ZADD', pending }, 0, {}
if what ~= 'all' then
  local before = what == 'ids' and tonumber(ARGV[FIRST])
  local ids, seen = { unpack(ARGV, FIRST + 1) }, {}
  if what == 'group' then
    ids = ids_of_group(groups, ARGV[FIRST], ARGV[FIRST + 1], ARGV[4])
    rest = #ids == limit and ids[limit] or ''
    for i, score in ipairs(#ids > 0 and redis.call('ZMSCORE', unack, unpack(ids)) or {}) do
      if score then in_flight[#in_flight + 1] = ids[i] end
    end
  end
  for i, score in ipairs(#ids > 0 and redis.call('ZMSCORE', pending, unpack(ids)) or {}) do
    local id = ids[i]
    if score and not seen[id] and (not before or was_before(messages, id, before)) then
      seen[id] = true
      if #cancelled < limit then
        cancelled[#cancelled + 1], scores[#scores + 1] = id, score
        back[#back + 1], back[#back + 2] = score, id
      else
        rest = rest + 1
      end
    end
  end
  if is_dry then return { #cancelled, rest, unpack(in_flight) } end
else
  -- A schedule that is in flight is not among those that wait, so the number can be too small for a moment.
  local waiting = math.max(0, redis.call('ZCARD', pending) - redis.call('HLEN', schedules))
  if is_dry then return { math.min(limit, waiting), math.max(0, waiting - limit) } end
  local seen = 0
  repeat
    local found = redis.call('ZRANGE', pending, seen, seen + limit - 1, 'WITHSCORES')
    for i = 1, #found, 2 do
      if #cancelled < limit and not is_schedule(found[i]) then
        cancelled[#cancelled + 1], scores[#scores + 1] = found[i], found[i + 1]
        back[#back + 1], back[#back + 2] = found[i + 1], found[i]
      end
    end
    seen = seen + limit
  until #cancelled == limit or #found < 2 * limit
  rest = #cancelled == limit and math.max(0, waiting - limit) or 0
end

local steps = {}
add(steps, 'ZREM', pending, cancelled, { back })
grow(steps, bytes, -sizes(messages, cancelled))
remember(steps, remembered, records, cancelled, true, keep, max)
local is_open = flow and conclude(steps, flow, cancelled, scores, math.floor(clock() / 1000))
if history then
  keep_cancelled(steps, history, attempts, messages, cancelled, scores, ARGV[7], math.floor(clock() / 1000))
end
delete(steps, attempts, errors, messages, groups, cancelled)
local failed = commit(steps)
if failed then return failed end
if is_open then wake(channel) end
return { #cancelled, rest, unpack(in_flight) }

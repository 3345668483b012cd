-- Ends claims: each message is gone, pending again, or dead.
--
-- KEYS   pending unack messages attempts errors dead remembered records bytes
-- ARGV   wake channel, how long to remember an acknowledged one (ms), how many at most, then for each lease: id, token,
--        bytes of its body, and its end: ack | retry, delay ms, error | bury, 1 when the attempt counts else 0, "<reason>: <error>" |
--        release, score | defer, pause ms
-- reply  for each lease: 1 done | 0 stale
--
-- A settlement, also a stale one, proves that the process of the claim lives: crashes of the message are forgotten.
local pending, unack, messages, attempts, errors, dead, remembered, records, bytes = unpack(KEYS)
local channel, keep, max = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local ARGUMENTS = { ack = 0, retry = 2, bury = 2, release = 1, defer = 1 }

local ids, tokens, ends, places = {}, {}, {}, {}
local at = 4
while at <= #ARGV do
  local n = #ids + 1
  ids[n], tokens[n], ends[n], places[n] = ARGV[at], ARGV[at + 1], ARGV[at + 3], at + 4
  at = at + 4 + ARGUMENTS[ends[n]]
end

local now = math.floor(clock() / 1000)
local earliest = head(pending)
local reply = held(unack, ids, tokens)
local values = redis.call('EXISTS', attempts) == 1 and redis.call('HMGET', attempts, unpack(ids)) or {}
local settled, moved, back = {}, {}, { 'ZADD', unack }
local gone, dues, waiting, graves, buried, texts = {}, {}, {}, {}, {}, {}
local counted, failures, old = {}, {}, {}
local wake_up, left = false, 0

local function keep_count(i, more)
  local n = #counted + 1
  counted[n], failures[n], old[n] = ids[i], (counts(values[i])) + more, values[i]
end

for i, id in ipairs(ids) do
  if reply[i] == 1 then
    local how, place = ends[i], places[i]
    settled[id] = true
    moved[#moved + 1] = id
    back[#back + 1], back[#back + 2] = tokens[i], id
    if how == 'ack' then
      gone[#gone + 1] = id
      left = left + ARGV[place - 2]
    elseif how == 'bury' then
      left = left + ARGV[place - 2]
      buried[#buried + 1] = id
      graves[#graves + 1], graves[#graves + 2] = whole(now), id
      texts[#texts + 1], texts[#texts + 2] = id, ARGV[place + 1]
      keep_count(i, tonumber(ARGV[place]))
    else
      local due = tonumber(ARGV[place]) + (how == 'release' and 0 or now)
      waiting[#waiting + 1] = id
      dues[#dues + 1], dues[#dues + 2] = whole(due), id
      if how == 'retry' then texts[#texts + 1], texts[#texts + 2] = id, ARGV[place + 1] end
      keep_count(i, how == 'retry' and 1 or 0)
      if not earliest or due < earliest then wake_up = true end
    end
  end
end
for i, id in ipairs(ids) do
  if values[i] and not settled[id] then
    settled[id] = true
    keep_count(i, 0)
  end
end

-- The shrinking write first: settling must work at maxmemory, where only a script's first write is checked.
local steps = {}
add(steps, 'ZREM', unack, moved, { back })
add(steps, 'ZADD', pending, dues, { { 'ZREM', pending, unpack(waiting) } })
add(steps, 'ZADD', dead, graves, { { 'ZREM', dead, unpack(buried) } })
count(steps, attempts, counted, failures, old)
if #texts > 0 then
  local named = {}
  for i = 1, #texts, 2 do named[#named + 1] = texts[i] end
  add(steps, 'HSET', errors, texts, restore(errors, named, redis.call('HMGET', errors, unpack(named))))
end
grow(steps, bytes, -left)
remember(steps, remembered, records, gone, false, keep, max)
forget(steps, attempts, errors, messages, gone)
local failed = commit(steps)
if failed then return failed end
if wake_up then wake(channel) end
return reply

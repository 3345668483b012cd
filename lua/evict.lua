-- include bodies clock commit fields groups scores
-- Evicts the oldest dead messages, by age and by number.
--
-- KEYS   messages attempts errors dead records groups grouped [flows] [outbox]
-- ARGV   maximum age (ms; 0: any), maximum number (0: any), limit (1 to 1000), 1 with an outbox, otherwise 0
-- reply  number deleted by age, number deleted by number, 1 if more must be deleted, otherwise 0, ms until the next one
--        is too old or -1
--
-- A message in the outbox (outbox.lua) stays until it is forwarded.
local messages, attempts, errors, dead, records = unpack(KEYS)
local groups = group_keys(KEYS, 6)
local max_age, max_count, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local outbox = ARGV[4] == '1' and KEYS[#KEYS] or nil
local flows = #KEYS > (outbox and 8 or 7) and KEYS[8] or nil

local now = math.floor(clock() / 1000)
local oldest = max_age > 0 and redis.call('ZCOUNT', dead, '-inf', whole(now - max_age)) or 0
local beyond = max_count > 0 and redis.call('ZCARD', dead) - max_count or 0
local wanted = math.max(oldest, beyond)
local aged, evicted, back = 0, {}, { 'ZADD', dead }
if wanted > 0 then
  local found = redis.call('ZRANGE', dead, 0, math.min(wanted, limit) - 1, 'WITHSCORES')
  local ids = {}
  for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
  local waits = outbox and redis.call('ZMSCORE', outbox, unpack(ids)) or {}
  for i, id in ipairs(ids) do
    if not waits[i] then
      evicted[#evicted + 1] = id
      back[#back + 1], back[#back + 2] = found[2 * i], id
      if i <= oldest then aged = aged + 1 end
    end
  end
end

local steps = {}
add(steps, 'ZREM', dead, evicted, { back })
drop(steps, records, evicted)
if flows then drop(steps, flows, evicted) end
delete(steps, attempts, errors, messages, groups, evicted)
local failed = commit(steps)
if failed then return failed end
local more = #evicted > 0 and wanted > limit
local first = max_age > 0 and head(dead)
return { aged, #evicted - aged, more and 1 or 0, first and math.max(0, first + max_age - now) or -1 }

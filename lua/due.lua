-- include clock external seconds
-- Returns due members in keys of other programs, and the next due time in these keys.
--
-- KEYS   source...
-- ARGV   number of sorted sets (the other keys are lists, in which all is due), ms in a unit of a score, maximum number
--        of members (1 to 250), maximum bytes of members, 1 if members with scores beyond the year 9999 are due too,
--        otherwise 0
-- reply  now us, next due ms or -1, then members, each once
--
-- The first member is returned at any size.
local sets, unit, limit, max_bytes = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
-- Members of the first read, before any size is known.
local FIRST = 8
local now = clock()
-- See due_ms.
local latest = string.format('%.17g', (math.floor(now / 1000) + 0.001) / unit)
local reply, seen, bytes, found = { now, -1 }, {}, 0, 0

-- Adds the members of read(offset, count), in parts that probably fit into the remaining bytes.
local function collect(read)
  local offset, count = 0, FIRST
  while found < limit and bytes < max_bytes do
    count = math.min(count, limit - found)
    local members = read(offset, count)
    for _, member in ipairs(members) do
      if not seen[member] then
        seen[member] = true
        reply[#reply + 1] = member
        found, bytes = found + 1, bytes + #member
        if bytes >= max_bytes then return end
      end
    end
    if #members < count then return end
    offset = offset + count
    count = math.max(1, math.floor((max_bytes - bytes) * found / math.max(1, bytes)))
  end
end

for i = sets + 1, #KEYS do
  collect(function(offset, count) return redis.call('LRANGE', KEYS[i], -offset - count, -offset - 1) end)
end
for i = 1, sets do
  collect(function(offset, count)
    return redis.call('ZRANGEBYSCORE', KEYS[i], '-inf', latest, 'LIMIT', offset, count)
  end)
  if ARGV[5] == '1' then
    local first = string.format('%.17g', (LAST_MILLIS + 1) / unit)
    collect(function(offset, count)
      return redis.call('ZRANGEBYSCORE', KEYS[i], first, '(inf', 'LIMIT', offset, count)
    end)
  end
  local score = tonumber(redis.call('ZRANGEBYSCORE', KEYS[i], '(' .. latest, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
  local due = score and due_ms(score, unit)
  if due and not is_far(due) and (reply[2] < 0 or due < reply[2]) then reply[2] = due end
end
return reply

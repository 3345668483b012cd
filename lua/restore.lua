-- include clock commit scores wake
-- Makes messages that are in no set pending again, at the due time in their body. A script leaves such a message when
-- it fails midway and the user lacks the rights to undo its first steps.
--
-- KEYS   pending unack messages dead flows
-- ARGV   wake channel, cursor ("" in the first call), COUNT for HSCAN
-- reply  number of restored messages; the next cursor, or "" at the end; in the first call 1 if messages are parked for
--        their flow or have a flow, otherwise 0, as in later calls. The first call ends at once if there are no more
--        bodies than members
local pending, unack, messages, dead, flows = unpack(KEYS)
local channel, cursor, count = ARGV[1], ARGV[2], ARGV[3]

local has_flows = 0
if cursor == '' then
  local parked = redis.call('ZCOUNT', pending, whole(PARKED), '+inf')
  has_flows = math.min(1, parked + redis.call('EXISTS', flows))
  local members = redis.call('ZCARD', pending) + redis.call('ZCARD', unack) + redis.call('ZCARD', dead)
  if redis.call('HLEN', messages) <= members then return { 0, '', has_flows } end
  cursor = '0'
end
local now = math.floor(clock() / 1000)
local earliest = head(pending)
local reply = redis.call('HSCAN', messages, cursor, 'COUNT', count)
local dues, restored, wake_up = { 'ZADD', pending }, 0, false
for i = 1, #reply[2], 2 do
  local id, body = reply[2][i], reply[2][i + 1]
  if not (redis.call('ZSCORE', pending, id) or redis.call('ZSCORE', unack, id) or redis.call('ZSCORE', dead, id)) then
    local due = #body >= 17 and struct.unpack('>I8', body, 2) or now
    dues[#dues + 1], dues[#dues + 2] = whole(due), id
    restored = restored + 1
    if not earliest or due < earliest then wake_up = true end
  end
end
if restored > 0 then
  -- The first write needs no memory: at maxmemory Redis refuses only the first write of a script.
  local failed = commit({ { { 'ZREM', pending, '' }, {} }, { dues, {} } })
  if failed then return failed end
  if wake_up then wake(channel) end
end
return { restored, reply[1] == '0' and '' or reply[1], has_flows }

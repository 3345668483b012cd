-- Moves due members of another program's sorted set into the queue: each names a hash, whose fields become the
-- payload, a JSON object.
--
-- KEYS   pending unack messages dead errors paused remembered source details...
-- ARGV   wake channel, due messages that may wait in pending, largest payload and most bytes of all bodies, ms in 1 of
--        a score, then for each member: id, member, metadata as JSON, 1 when the hash is not to be touched else 0
-- reply  for each member: taken | invalid (a dead letter now) | gone | conflict (its id is live) | left (no room)
local OWN_KEYS = 8
local source = KEYS[8]
local queue = {
  pending = KEYS[1], unack = KEYS[2], messages = KEYS[3], dead = KEYS[4], errors = KEYS[5], paused = KEYS[6],
  remembered = KEYS[7],
}
local channel, unit = ARGV[1], tonumber(ARGV[5])
local limits = {
  now = math.floor(clock() / 1000), room = tonumber(ARGV[2]), payload = tonumber(ARGV[3]), bytes = tonumber(ARGV[4]),
}

local entries, members, barred = {}, {}, {}
for i = 6, #ARGV, 4 do
  entries[#entries + 1] = { id = ARGV[i], metadata = ARGV[i + 2] }
  members[#members + 1] = ARGV[i + 1]
  barred[#barred + 1] = ARGV[i + 3] == '1'
end
local scores = redis.call('ZMSCORE', source, unpack(members))
for i, entry in ipairs(entries) do
  local due = scores[i] and due_ms(tonumber(scores[i]), unit)
  if due and due <= limits.now then entry.due = due end
end

-- UTF-8 as RFC 3629 has it.
local function is_utf8(text)
  if not string.find(text, '[\128-\255]') then return true end
  local i = 1
  while i <= #text do
    local a, b = string.byte(text, i, i + 1)
    local length = a < 0x80 and 1 or a < 0xC2 and 0 or a < 0xE0 and 2 or a < 0xF0 and 3 or a < 0xF5 and 4 or 0
    if length == 0 then return false end
    if length > 1 then
      local least = a == 0xE0 and 0xA0 or a == 0xF0 and 0x90 or 0x80
      local most = a == 0xED and 0x9F or a == 0xF4 and 0x8F or 0xBF
      if not b or b < least or b > most then return false end
      for j = i + 2, i + length - 1 do
        local c = string.byte(text, j)
        if not c or c < 0x80 or c > 0xBF then return false end
      end
    end
    i = i + length
  end
  return true
end

-- cjson escapes what must be, and the slash, which need not be.
local function quote(text)
  return (string.gsub(cjson.encode(text), '\\/', '/'))
end

-- What is no text is kept all the same: its bytes as the characters U+0000 to U+00FF.
local function quote_bytes(text)
  return (string.gsub(quote(text), '[\128-\255]', function(byte)
    return string.format('\\u%04x', string.byte(byte))
  end))
end

local done_with = {}
local function read(i)
  if barred[i] then return members[i], "its details are one of punctual's own keys" end
  local key = KEYS[OWN_KEYS + i]
  local kind = redis.call('TYPE', key).ok
  if kind == 'none' then return members[i], 'its details are missing: there is no hash of this name' end
  if kind ~= 'hash' then return members[i], 'its details are no hash, but a ' .. kind end
  local values, pairs_of, broken = redis.call('HGETALL', key), {}, nil
  for n = 1, #values, 2 do
    local field, value = values[n], values[n + 1]
    if is_utf8(field) and is_utf8(value) then
      pairs_of[#pairs_of + 1] = quote(field) .. ':' .. quote(value)
    else
      broken = broken or quote_bytes(string.sub(field, 1, 64))
      pairs_of[#pairs_of + 1] = quote_bytes(field) .. ':' .. quote_bytes(value)
    end
  end
  done_with[#done_with + 1] = key
  local problem = broken and 'field ' .. broken .. ' is not UTF-8: its bytes stand as U+0000 to U+00FF'
  return '{' .. table.concat(pairs_of, ',') .. '}', problem
end

local verdicts, steps, taken, wake_up = take(queue, limits, entries, read)
leave(steps, source, taken, members, scores)
-- Last: what expires with the hash could not be brought back.
if #done_with > 0 then steps[#steps + 1] = { { 'DEL', unpack(done_with) }, {} } end
local failed = commit(steps)
if failed then return failed end
if wake_up then wake(channel) end
return verdicts

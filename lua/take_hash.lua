-- include commit external json taking utf8 wake
-- Moves due members of a sorted set of another program into the queue. Each member names a hash. The payload is a JSON
-- object of the fields of the hash.
--
-- KEYS   pending unack messages dead errors paused route remembered bytes [outbox] [history] [flow] source details...
-- ARGV   wake channel, required prefix of `route` ("<version> <partitions> <number> "), maximum number of due messages
--        in pending, maximum bytes of a payload and of all bodies, the optional keys that are there ("outbox", "history", "flow"),
--        limits of the history ("": none; see history.lua), ms in a
--        unit of a score, required prefix of the name of a hash, then for each member: id, member, metadata as JSON
-- reply  for each member: taken | invalid: <reason> (now a dead letter) | gone (absent or not due) | conflict (its id
--        is live) | left (no room, or a limit of the route); error `PUNCTUAL unregistered <text>`, nothing written,
--        when the partition is not open
--
-- details: for each member its name, or `source` if the hash must not be read.
-- A hash that is too large is not read: its member becomes a dead letter, and the hash stays.
local source, unit = KEYS[OWN_KEYS + 1], tonumber(ARGV[OWN_ARGUMENTS + 1])
local prefix = ARGV[OWN_ARGUMENTS + 2]
-- Maximum number of fields of a hash that is read: each takes 1 to 2 us.
local MAX_FIELDS = 2000
-- Bytes that a field counts for in a call, in addition to its content.
local FIELD_WEIGHT = 128

local entries, members = {}, {}
for i = OWN_ARGUMENTS + 3, #ARGV, 3 do
  entries[#entries + 1] = { id = ARGV[i], metadata = ARGV[i + 2] }
  members[#members + 1] = ARGV[i + 1]
end
local scores = redis.call('ZMSCORE', source, unpack(members))
for i, entry in ipairs(entries) do
  if scores[i] then entry.due, entry.problem = read_score(tonumber(scores[i]), unit, limits.now) end
end

-- A string that is not UTF-8, as JSON: its bytes as the characters U+0000 to U+00FF.
local function quote_bytes(text)
  return (string.gsub(encode(text), '[\128-\255]', function(byte)
    return string.format('\\u%04x', string.byte(byte))
  end))
end

local function too_large(size)
  return 'its details take ' .. size .. ' bytes as JSON, at most ' .. limits.payload .. ': they stay where they are'
end

-- The reason why the hash of a member must not be read, if any: a producer chooses the name, and this script has more
-- rights than the producer. Keys of any punctual are {<prefix>:<route>:<index>/<count>}:<name> and <prefix>:routes.
local function barred(member, key)
  if string.find(member, '^{[%w._-]+:[%w._-]+:%d+/%d+}:') or string.find(member, '^[%w._-]+:routes$') then
    return "its details are one of punctual's own keys"
  end
  if string.sub(member, 1, #prefix) ~= prefix or key ~= member then
    return 'its details are not read: the name does not begin with `hash_prefix`'
  end
end

local fields_of = {}
local function weigh(i)
  local key = KEYS[OWN_KEYS + 1 + i]
  local problem = entries[i].problem or barred(members[i], key)
  if problem then return 0, problem, members[i] end
  local kind = redis.call('TYPE', key).ok
  if kind == 'none' then return 0, 'its details are missing: there is no hash of this name', members[i] end
  if kind ~= 'hash' then return 0, 'its details are no hash, but a ' .. kind, members[i] end
  local count = redis.call('HLEN', key)
  if count > MAX_FIELDS then
    local problem = 'its details have ' .. count .. ' fields, at most ' .. MAX_FIELDS .. ': they stay where they are'
    return 0, problem, members[i]
  end
  local fields, size = redis.call('HKEYS', key), 0
  for _, field in ipairs(fields) do size = size + #field + redis.call('HSTRLEN', key, field) end
  -- The braces; for each field four quotes, a colon and a comma, which the last field lacks.
  local json = size + 6 * count + 1
  if json > limits.payload then return 0, too_large(json), members[i] end
  fields_of[i] = fields
  return size + FIELD_WEIGHT * count
end

-- The keys that were read, by index.
local read_from = {}
local function read(i)
  local key = KEYS[OWN_KEYS + 1 + i]
  -- HVALS has the order of HKEYS while the hash is unchanged.
  local fields, values, json, problem = fields_of[i], redis.call('HVALS', key), nil, nil
  -- One check of all texts is several times cheaper than a check of each.
  if is_utf8(table.concat(fields, ' ')) and is_utf8(table.concat(values, ' ')) then
    local object = {}
    for n, field in ipairs(fields) do object[field] = values[n] end
    json = encode(object)
  else
    local pairs_of = {}
    for n, field in ipairs(fields) do
      local quoted = is_utf8(field) and is_utf8(values[n]) and encode or quote_bytes
      if quoted == quote_bytes and not problem then
        local shown = quote_bytes(string.sub(field, 1, 64))
        problem = 'field ' .. shown .. ' is not UTF-8: its bytes are written as U+0000 to U+00FF'
      end
      pairs_of[n] = quoted(field) .. ':' .. quoted(values[n])
    end
    json = '{' .. table.concat(pairs_of, ',') .. '}'
  end
  if #json > limits.payload then return members[i], too_large(#json) end
  read_from[i] = key
  return json, problem
end

local verdicts, steps, taken, wake_up = take(entries, weigh, read)
leave(steps, source, taken, members, scores)
local read_keys = {}
for _, i in ipairs(taken) do read_keys[#read_keys + 1] = read_from[i] end
-- The last step, because the expiry of a hash could not be restored.
if #read_keys > 0 then steps[#steps + 1] = { { 'DEL', unpack(read_keys) }, {} } end
local failed = commit(steps)
if failed then return failed end
if wake_up then wake(channel) end
return verdicts

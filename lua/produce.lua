-- Schedules one message from any program that has a Redis client: the same checks, result and wake-up as
-- through the HTTP API. Public: it stays accepted over releases.
--
--   redis-cli -x SCRIPT LOAD < lua/produce.lua
--   redis-cli EVALSHA <sha> 1 '{punctual:order-timeout:0}:pending' 1 order-42 +60000 'the payload' '{"key":"k"}'
--
-- KEYS[1]  {P:<route>:<partition>}:pending; partition = CRC32 (IEEE) of the id modulo the partitions that
--          HGET P:routes <route> tells
-- ARGV     "1" (version), id, "+<delay ms>" | "<due ms>", payload, options as JSON or ""
-- options  headers, key, content_type, properties, max_attempts, expires_at (ms), on_conflict ("keep" | "replace")
-- reply    { status, id, due ms }; status: scheduled | exists | replaced | in_flight (live, not replaced) |
--          delivered | cancelled (the route remembers the id: nothing changed; the time is that of its end)
-- errors   PUNCTUAL <slug> <text>, nothing written; slug: version, unknown-route, wrong-partition, invalid-id,
--          invalid-due, invalid-options, too-large, limit-messages, limit-bytes, limit-delay (limits of the route;
--          the first two pass as messages are delivered)
local MAX_ID_BYTES = 128
local MAX_METADATA_BYTES = 65536
local MAX_HEADER_NAME_BYTES = 256
local MAX_PROPERTY_BYTES = 255
local MAX_INTEGER = 9007199254740991
-- 142,000 years: added to any clock it stays below 2^53.
local MAX_DELAY = 4503599627370496
local MAX_NAME_SHOWN = 64

local function refuse(slug, text)
  return redis.error_reply('PUNCTUAL ' .. slug .. ' ' .. text)
end

local tag = string.match(KEYS[1] or '', '^({.+}):pending$')
if not tag or #KEYS ~= 1 then return refuse('unknown-route', 'KEYS[1] must be {P:<route>:<partition>}:pending') end
if ARGV[1] ~= '1' then return refuse('version', 'ARGV[1] must be 1') end
if #ARGV ~= 5 then return refuse('version', 'version 1 takes five arguments') end
local _, id, when, payload, options = unpack(ARGV)

-- Partition and limits, as the running punctual wrote them.
local settings = redis.call('GET', tag .. ':route')
if not settings then return refuse('unknown-route', 'no punctual serves ' .. tag) end
local partitions, number, max_payload, keep = string.match(settings, '^1 (%d+) (%d+) (%d+) ?(%d*)')
local most_messages, most_bytes, longest = string.match(settings, '^%d+ %d+ %d+ %d+ %d+ (%d+) (%d+) (%d+)$')
if not partitions then return refuse('version', 'the queue belongs to another release') end

if #id < 1 or #id > MAX_ID_BYTES or string.find(id, '[^A-Za-z0-9._:~-]') then
  return refuse('invalid-id', 'an id is 1 to 128 of A-Za-z0-9._:~-')
end

-- CRC-32/ISO-HDLC, bit by bit: ids are short.
local crc = -1
for i = 1, #id do
  crc = bit.bxor(crc, string.byte(id, i))
  for _ = 1, 8 do
    local low = bit.band(crc, 1)
    crc = bit.rshift(crc, 1)
    if low == 1 then crc = bit.bxor(crc, 0xEDB88320) end
  end
end
crc = bit.bnot(crc) % 4294967296
if crc % tonumber(partitions) ~= tonumber(number) then
  return refuse('wrong-partition', 'this id belongs to partition ' .. crc % tonumber(partitions))
end

local relative, digits = string.match(when, '^(%+?)(%d+)$')
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local due = digits and #digits <= 16 and tonumber(digits)
if not due or due > (relative == '+' and MAX_DELAY or MAX_INTEGER) then
  return refuse('invalid-due', 'use +<delay ms>, at most 2^52, or <due ms>, below 2^53')
end
if relative == '+' then due = now + due end

if #payload > tonumber(max_payload) then
  return refuse('too-large', 'the payload takes ' .. #payload .. ' bytes, at most ' .. max_payload)
end

-- The options are checked, then written anew: what is stored must be what every release can read.
local ESCAPES = { ['"'] = '\\"', ['\\'] = '\\\\', ['\t'] = '\\t' }
local function quote(text)
  return '"' .. string.gsub(text, '["\\\t]', ESCAPES) .. '"'
end

-- UTF-8 as RFC 3629 has it.
local function is_utf8(text)
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

local function is_text(value)
  return type(value) == 'string' and not string.find(value, '[%z\1-\8\10-\31\127]') and is_utf8(value)
end

local function is_integer(value, least)
  return type(value) == 'number' and value % 1 == 0 and value >= least and value <= MAX_INTEGER
end

local RESERVED = {}
for name in string.gmatch('authorization connection content-length content-type host keep-alive ' ..
  'proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding upgrade', '%S+') do
  RESERVED[name] = true
end

-- A header name as receivers compare it: in lower case and, as CGI and WSGI make the same of both, with - for _.
local function folded(name)
  return (string.gsub(string.lower(name), '_', '-'))
end

local function is_header_name(name)
  if type(name) ~= 'string' or #name < 1 or #name > MAX_HEADER_NAME_BYTES then return false end
  if string.find(name, "[^%w!#$%%&'*+.^_`|~-]") then return false end
  local plain = folded(name)
  return not RESERVED[plain] and string.sub(plain, 1, 9) ~= 'punctual-' and string.sub(plain, 1, 8) ~= 'webhook-'
end

local TEXT_PROPERTIES =
  { content_encoding = true, correlation_id = true, reply_to = true, type = true, app_id = true }

local fields, replace = {}, false
local known = {}
function known.headers(value)
  if type(value) ~= 'table' then return false end
  -- cjson makes the same of [] as of {}. Inside a text its quotes would be escaped.
  if next(value) == nil and string.find(options, '"headers"%s*:%s*%[') then return false end
  local pairs_of, seen = {}, {}
  for name, text in pairs(value) do
    if not is_header_name(name) or not is_text(text) or seen[folded(name)] then return false end
    seen[folded(name)] = true
    pairs_of[#pairs_of + 1] = quote(name) .. ':' .. quote(text)
  end
  table.sort(pairs_of)
  if #pairs_of > 0 then fields[#fields + 1] = '"headers":{' .. table.concat(pairs_of, ',') .. '}' end
  return true
end
function known.key(value)
  if not is_text(value) then return false end
  fields[#fields + 1] = '"key":' .. quote(value)
  return true
end
function known.content_type(value)
  if not is_text(value) then return false end
  fields[#fields + 1] = '"content_type":' .. quote(value)
  return true
end
function known.properties(value)
  if type(value) ~= 'table' then return false end
  local given = {}
  for name, property in pairs(value) do
    if property == cjson.null then
      -- as if it were not there
    elseif name == 'priority' then
      if not is_integer(property, 0) or property > 255 then return false end
      given[#given + 1] = string.format('"priority":%.0f', property)
    elseif TEXT_PROPERTIES[name] then
      if not is_text(property) or #property > MAX_PROPERTY_BYTES then return false end
      given[#given + 1] = quote(name) .. ':' .. quote(property)
    else
      return false
    end
  end
  table.sort(given)
  if #given > 0 then fields[#fields + 1] = '"properties":{' .. table.concat(given, ',') .. '}' end
  return true
end
function known.max_attempts(value)
  if not is_integer(value, 1) or value > 4294967295 then return false end
  fields[#fields + 1] = string.format('"max_attempts":%.0f', value)
  return true
end
function known.expires_at(value)
  if not is_integer(value, 0) then return false end
  fields[#fields + 1] = string.format('"expires_at":%.0f', value)
  return true
end
function known.on_conflict(value)
  replace = value == 'replace'
  return replace or value == 'keep'
end

if options ~= '' then
  local ok, decoded = pcall(cjson.decode, options)
  if not ok or type(decoded) ~= 'table' or not string.find(options, '^%s*{') then return refuse('invalid-options', 'options must be a JSON object') end
  for name, value in pairs(decoded) do
    if not known[name] then return refuse('invalid-options', 'unknown option ' .. string.sub(tostring(name), 1, MAX_NAME_SHOWN)) end
    if value ~= cjson.null and not known[name](value) then return refuse('invalid-options', 'invalid value of ' .. name) end
  end
end
table.sort(fields)
local metadata = '{' .. table.concat(fields, ',') .. '}'
if #metadata > MAX_METADATA_BYTES then
  return refuse('invalid-options', 'headers and key take more than 65536 bytes')
end

local pending, unack, dead = KEYS[1], tag .. ':unack', tag .. ':dead'
local messages, attempts, errors = tag .. ':messages', tag .. ':attempts', tag .. ':errors'
local pending_score = redis.call('ZSCORE', pending, id)
local in_flight = redis.call('ZSCORE', unack, id)
local dead_score = redis.call('ZSCORE', dead, id)
local old = (pending_score or in_flight or dead_score) and redis.call('HGET', messages, id)
local function due_inside() return old and #old >= 17 and struct.unpack('>I8', old, 2) or 0 end

if in_flight and replace then return { 'in_flight', id, (due_inside()) } end
if pending_score and not replace then return { 'exists', id, tonumber(pending_score) } end
if (in_flight or dead_score) and not replace then return { 'exists', id, (due_inside()) } end

keep = tonumber(keep) or 0
local live = pending_score or in_flight or dead_score
local remembered = tag .. ':remembered'
local ended = not live and redis.call('ZSCORE', remembered, id)
if ended and keep > 0 and tonumber(ended) >= now - keep then
  -- That of a cancelled one is half a millisecond more.
  local at = math.floor(tonumber(ended))
  return { at < tonumber(ended) and 'cancelled' or 'delivered', id, at }
end

local body = struct.pack('>BI8I8I4', 1, due, now, #metadata) .. metadata .. payload
-- Bytes of the bodies that wait or are in flight, and what is added to them.
local bytes = tag .. ':bytes'
local held = redis.call('GET', bytes)
local added = #body - (pending_score and old and #old or 0)
-- 0 is no limit.
local function is_over(limit, number) return limit and limit ~= '0' and number > tonumber(limit) end
if is_over(longest, due - now) then
  return refuse('limit-delay', 'the delay is longer than ' .. longest .. ' ms, as the route takes at most')
end
if not pending_score and is_over(most_messages, redis.call('ZCARD', pending) + redis.call('ZCARD', unack) + 1) then
  return refuse('limit-messages', 'the partition holds ' .. most_messages .. ' messages, as many as it takes')
end
if added > 0 and is_over(most_bytes, (tonumber(held) or 0) + added) then
  return refuse('limit-bytes', 'the partition would hold more than ' .. most_bytes .. ' bytes')
end

-- Redis keeps what a failed script wrote: undo what was done, in reverse. The growing write comes first, so
-- that at maxmemory nothing is written at all.
local steps = { { { 'HSET', messages, id, body }, old and { 'HSET', messages, id, old } or { 'HDEL', messages, id } } }
if dead_score then
  steps[#steps + 1] = { { 'ZREM', dead, id }, { 'ZADD', dead, dead_score, id } }
end
-- What lives again is not remembered as ended.
if ended then steps[#steps + 1] = { { 'ZREM', remembered, id }, { 'ZADD', remembered, ended, id } } end
for _, key in ipairs({ attempts, errors }) do
  local value = (pending_score or dead_score) and redis.call('HGET', key, id)
  if value then
    steps[#steps + 1] = { { 'HDEL', key, id }, { 'HSET', key, id, value } }
  end
end
local sum = string.format('%.0f', math.max(0, (tonumber(held) or 0) + added))
steps[#steps + 1] = { { 'SET', bytes, sum }, held and { 'SET', bytes, held } or { 'DEL', bytes } }
steps[#steps + 1] = { { 'ZADD', pending, string.format('%.0f', due), id }, {} }

local earliest = tonumber(redis.call('ZRANGE', pending, 0, 0, 'WITHSCORES')[2])
for i, step in ipairs(steps) do
  local reply = redis.pcall(unpack(step[1]))
  if type(reply) == 'table' and reply.err then
    for j = i - 1, 1, -1 do redis.pcall(unpack(steps[j][2])) end
    return reply
  end
end
if not earliest or due < earliest then redis.pcall('PUBLISH', tag .. ':wake', '') end
return { (pending_score or dead_score) and 'replaced' or 'scheduled', id, due }

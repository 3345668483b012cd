-- include clock
-- Lists flows: those with parked messages, messages in flight or rules of their own, by name.
--
-- KEYS   waiting flights gates rules
-- ARGV   "one", a flow; or "page", limit (1 to 100), "" or "=" and the flow after which the page begins
-- reply  now (ms), 1 if more follow, otherwise 0, then for each flow: name, number parked, number in flight, when a
--        claim looks at its parked messages (ms; -1: when a message ends or the rules change, or none is parked), id of
--        the first message in flight or that holds it or "", value in `rules` or ""
local waiting, flights, gates, rules = unpack(KEYS)
-- Rules that are listed.
local MOST_RULES = 1000

local function bounds(name) return '[' .. name .. '\0', '(' .. name .. '\1' end

-- The name of the first flow in a set after `name`, or the first of all without it.
local function following(set, name)
  local member = redis.call('ZRANGEBYLEX', set, name and '[' .. name .. '\1' or '-', '+', 'LIMIT', '0', '1')[1]
  return member and string.sub(member, 1, string.find(member, '%z') - 1)
end

local names, more = {}, 0
if ARGV[1] == 'one' then
  names[1] = ARGV[2]
else
  local limit, after = tonumber(ARGV[2]), string.match(ARGV[3], '^=(.*)$')
  local own, all = {}, redis.call('HLEN', rules) <= MOST_RULES and redis.call('HGETALL', rules) or {}
  for i = 1, #all, 2 do own[#own + 1] = all[i] end
  table.sort(own)
  local at = 1
  while #names <= limit do
    while own[at] and after and own[at] <= after do at = at + 1 end
    local first
    for _, name in ipairs({ following(waiting, after) or false, following(flights, after) or false, own[at] or false }) do
      if name and (not first or name < first) then first = name end
    end
    if not first then break end
    names[#names + 1], after = first, first
  end
  if #names > limit then names[#names], more = nil, 1 end
end

local reply = { math.floor(clock() / 1000), more }
for _, name in ipairs(names) do
  local n, from, to = #reply, bounds(name)
  local gate = redis.call('ZSCORE', gates, name)
  local held = redis.call('ZRANGEBYLEX', flights, from, to, 'LIMIT', '0', '1')[1]
  reply[n + 1], reply[n + 2], reply[n + 3] = name, redis.call('ZLEXCOUNT', waiting, from, to), redis.call('ZLEXCOUNT', flights, from, to)
  reply[n + 4] = gate and gate ~= 'inf' and math.floor(tonumber(gate)) or -1
  reply[n + 5] = held and string.sub(held, #name + 2) or ''
  reply[n + 6] = redis.call('HGET', rules, name) or ''
end
return reply

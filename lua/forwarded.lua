-- include bodies clock commit fields groups scores
-- Ends the turn of dead letters that a forwarder took (forward.lua).
--
-- KEYS   outbox messages attempts errors dead records groups grouped [flows]
-- ARGV   keep (they were forwarded) | purge (they were forwarded, and are deleted) | ms until a forwarder takes them again,
--        then for each: id, its score in the outbox, time of death (ms)
-- reply  number that left the outbox
--
-- One that another forwarder took since, or that died again, stays as it is.
local outbox, messages, attempts, errors, dead, records = unpack(KEYS)
local groups, flows = group_keys(KEYS, 7), KEYS[9]
local how = ARGV[1]
local ids, tokens, deaths = {}, {}, {}
for i = 2, #ARGV, 3 do
  ids[#ids + 1], tokens[#tokens + 1], deaths[#deaths + 1] = ARGV[i], ARGV[i + 1], ARGV[i + 2]
end
local held, died = redis.call('ZMSCORE', outbox, unpack(ids)), redis.call('ZMSCORE', dead, unpack(ids))
local own, back, purged, purged_back, later = {}, { 'ZADD', outbox }, {}, { 'ZADD', dead }, {}
local again = tonumber(how) and whole(math.floor(clock() / 1000) + how)
for i, id in ipairs(ids) do
  if held[i] and tonumber(held[i]) == tonumber(tokens[i]) then
    own[#own + 1] = id
    back[#back + 1], back[#back + 2] = held[i], id
    later[#later + 1], later[#later + 2] = again, id
    if how == 'purge' and died[i] and tonumber(died[i]) == tonumber(deaths[i]) then
      purged[#purged + 1] = id
      purged_back[#purged_back + 1], purged_back[#purged_back + 2] = died[i], id
    end
  end
end
local steps = {}
if again then
  add(steps, 'ZADD', outbox, later, {})
else
  add(steps, 'ZREM', outbox, own, { back })
  add(steps, 'ZREM', dead, purged, { purged_back })
  drop(steps, records, purged)
  if flows then drop(steps, flows, purged) end
  delete(steps, attempts, errors, messages, groups, purged)
end
return commit(steps) or (again and 0 or #own)

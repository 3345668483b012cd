-- include clock scores
-- Counts the pending messages that become due in each of several equal intervals from now on.
--
-- KEYS   pending
-- ARGV   now (ms; "" for the clock), length of an interval (ms), number of intervals (1 to 1000)
-- reply  now (ms), number overdue, those parked for their flow included, number due after the last interval, then for
--        each interval the number due in it, its end included
local pending = KEYS[1]
local length, count = tonumber(ARGV[2]), tonumber(ARGV[3])

local now = tonumber(ARGV[1]) or math.floor(clock() / 1000)
local parked = redis.call('ZCOUNT', pending, whole(PARKED), '+inf')
local all = redis.call('ZCARD', pending) - parked
local below = redis.call('ZCOUNT', pending, '-inf', whole(now))
local reply = { now, below + parked, 0 }
for i = 1, count do
  -- After the last message nothing is left to count: an idle route takes three commands.
  local up_to = below < all and redis.call('ZCOUNT', pending, '-inf', whole(now + i * length)) or below
  reply[#reply + 1], below = up_to - below, up_to
end
reply[3] = all - below
return reply

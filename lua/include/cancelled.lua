-- include attempts history scores
-- Maximum bytes of bodies that one call reads for their entries.
local MOST_READ_FOR_ENTRIES = 8 * 1024 * 1024

-- Adds the steps that keep the cancellations of pending messages, with their scores, in the history if there is one.
-- Beyond MOST_READ_FOR_ENTRIES only the due time of a message is kept. `by`: name of the token ("": none).
local function keep_cancelled(steps, history, attempts, messages, ids, scores, by, now)
  if not history or #ids == 0 then return end
  local entries, bytes = {}, 0
  local counts_of = redis.call('HMGET', attempts, unpack(ids))
  for i, id in ipairs(ids) do
    local size = redis.call('HSTRLEN', messages, id)
    local body = struct.pack('>BI8I8', 0, (due_by(scores[i])), 0)
    if bytes + size <= MOST_READ_FOR_ENTRIES or i == 1 then
      bytes, body = bytes + size, redis.call('HGET', messages, id)
    end
    entries[i] = entry_of('cancelled', id, (counts(counts_of[i])), body, nil, by)
  end
  keep_ends(steps, history, ids, entries, now)
end

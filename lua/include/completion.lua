-- include bodies commit remembered
-- Adds the steps that remember delivered ids for `keep` ms, at most `max` of them, and that delete the messages. These
-- steps must be the last ones.
local function complete(steps, remembered, records, attempts, errors, messages, groups, ids, keep, max)
  if #ids == 0 then return end
  -- Usually none of these keys exists.
  if keep > 0 or redis.call('EXISTS', remembered, records, attempts, errors, groups.groups) > 0 then
    remember(steps, remembered, records, ids, false, keep, max)
    delete(steps, attempts, errors, messages, groups, ids)
  else
    add(steps, 'HDEL', messages, ids, {})
  end
end

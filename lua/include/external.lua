-- include seconds
-- The score of another program as ms since the epoch, rounded up; `unit` is the number of ms in a unit of the score. A
-- fraction of less than a microsecond is a rounding error: 1700000000.123 * 1000 is not whole.
local function due_ms(score, unit)
  return math.max(0, math.ceil(score * unit - 0.001))
end

-- The due time in ms of a member with this score, nothing if the member is not due; and the reason if the score cannot
-- be a time in `unit`: such a member is due now. Infinity is never due.
local function read_score(score, unit, now)
  if score == math.huge then return end
  local due = due_ms(score, unit)
  if is_far(due) then
    local hint = unit == 1 and 'microseconds? use milliseconds' or 'milliseconds? set `unit: milliseconds`'
    return now, 'its score is beyond the year 9999: ' .. hint
  end
  if due > now then return end
  if unit == 1 and is_seconds(due) then
    return due, 'its score is in the year 1970 to 1973: seconds? set `unit: seconds`'
  end
  return due
end

-- include seconds
-- The score of another program as ms since the epoch, rounded up; `unit` is the ms in 1 of it. Less than a microsecond
-- is a rounding error: 1700000000.123 * 1000 is not whole.
local function due_ms(score, unit)
  return math.max(0, math.ceil(score * unit - 0.001))
end

-- Why a score is not a time, if so.
local function misread(due, unit)
  if due and unit == 1 and is_seconds(due) then
    return 'its score is in the year 1970 to 1973: seconds? set `unit: seconds`'
  end
end

-- Converts a bucket's state to another policy: permits that were used and not refilled stay used.
--
-- tat, as_of                  the state under the old policy
-- old_span, old_interval      the old policy, as in `ask`; null if the row has none, and its state stays as it is
-- new_span, new_interval      the new policy
-- now_ns                      the time, nanoseconds since the Unix epoch
--
-- Returns the state under the new policy.
-- Atomic: it only computes with its arguments.
-- A bigint expresses times until the year 2262. A debt that would last longer ends in that year.
create or replace function headcount.convert_state(
  inout tat bigint, inout as_of bigint,
  old_span bigint, old_interval bigint, new_span bigint, new_interval bigint, now_ns bigint)
language plpgsql immutable as $$
declare
  at_ns bigint;
  used numeric;
begin
  if old_span is null or old_interval is null or (old_span = new_span and old_interval = new_interval) then
    return;
  end if;
  -- The time under the old policy, and the time under the new one. At the rate zero, time stands still.
  at_ns := greatest(case when old_interval < 0 then 0 else now_ns end, as_of);
  as_of := case when new_interval < 0 then 0 when old_interval < 0 then now_ns else greatest(now_ns, at_ns) end;
  if old_interval = 0 then
    tat := as_of;
    return;
  end if;
  used := div(greatest(tat::numeric - at_ns, 0) * abs(new_interval) + abs(old_interval) - 1, abs(old_interval));
  tat := least(as_of + used, 9223372036854775807)::bigint;
end
$$;

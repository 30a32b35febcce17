-- Sets the permits of a bucket.
--
-- $1   the bucket
-- $2   the missing permits, as the time in which they are refilled, in nanoseconds
-- $3   its span, as in `ask`
-- $4   its interval, as in `ask`
-- $5   the time, nanoseconds since the Unix epoch; null for the server's clock. Only tests give one.
--
-- Returns nothing.
-- Atomic: one statement.
insert into headcount.buckets (id, tat, as_of, span_ns, interval_ns)
select $1, now.ns + $2::bigint, now.ns, $3, $4
from (select case when $4::bigint < 0 then 0 else
  coalesce($5::bigint, (extract(epoch from clock_timestamp()) * 1000000)::bigint * 1000) end as ns) as now
on conflict (id) do update set
  tat = excluded.tat, as_of = excluded.as_of, span_ns = excluded.span_ns, interval_ns = excluded.interval_ns

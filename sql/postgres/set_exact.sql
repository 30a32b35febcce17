-- Puts a bucket where it has so many permits.
--
-- $1   which bucket
-- $2   what is missing to a full one, as the time in which it comes, nanoseconds
-- $3   the time, nanoseconds since the Unix epoch; null is the server's clock. Only tests say one.
--
-- Returns nothing.
-- Atomic: one statement.
insert into headcount.buckets (id, tat, as_of)
select $1, now.ns + $2::bigint, now.ns
from (select coalesce($3::bigint, (extract(epoch from clock_timestamp()) * 1000000)::bigint * 1000) as ns) as now
on conflict (id) do update set tat = excluded.tat, as_of = excluded.as_of

-- Locks a bucket until the transaction ends, to give permits back.
--
-- $1   the bucket
-- $2   its span, as in `ask`
-- $3   its interval, as in `ask`
-- $4   the time, nanoseconds since the Unix epoch; null for the database's clock. Only tests give one.
--
-- Returns the bucket's state (converted to the policy of $2 and $3) and the time; no row if the bucket is new.
-- Atomic: requests for the bucket wait until the transaction ends.
with locked as (
  select tat, as_of, span_ns, interval_ns,
    coalesce($4::bigint, (extract(epoch from clock_timestamp()) * 1000000)::bigint * 1000) as now_ns
  from headcount.buckets where id = $1 for update)
select (headcount.convert_state(tat, as_of, span_ns, interval_ns, $2, $3, now_ns)).*, now_ns from locked

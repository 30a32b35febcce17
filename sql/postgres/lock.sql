-- Locks a bucket until the transaction ends, to change it by hand: for giving back.
--
-- $1   which bucket
-- $2   the time, nanoseconds since the Unix epoch; null is the server's clock. Only tests say one.
--
-- Returns its state and the time; no row if it was never asked for.
-- Atomic: whoever asks for the bucket waits until the transaction ends.
with locked as (select tat, as_of from headcount.buckets where id = $1 for update)
select tat, as_of, coalesce($2::bigint, (extract(epoch from clock_timestamp()) * 1000000)::bigint * 1000) from locked

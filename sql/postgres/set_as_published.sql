-- Sets the tokens of a bucket of the published function.
--
-- $1   the bucket
-- $2   its tokens
-- $3   the time, microseconds since the Unix epoch; null for the server's clock. Only tests give one.
--
-- Returns nothing.
-- Atomic: one statement.
insert into headcount.rate_limiting_token_bucket (id, tk, ts)
values ($1, $2, coalesce(timestamptz 'epoch' + $3::bigint * interval '1 microsecond', clock_timestamp()))
on conflict (id) do update set tk = excluded.tk, ts = excluded.ts

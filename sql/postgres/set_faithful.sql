-- Puts a bucket of the published function where it has so many tokens.
--
-- $1   which bucket
-- $2   its tokens
-- $3   the time, microseconds since the Unix epoch; null is the server's clock. Only tests say one.
--
-- Returns nothing.
-- Atomic: one statement.
insert into headcount.rate_limiting_token_bucket (id, tk, ts)
values ($1, $2, coalesce(timestamptz 'epoch' + $3::bigint * interval '1 microsecond', clock_timestamp()))
on conflict (id) do update set tk = excluded.tk, ts = excluded.ts

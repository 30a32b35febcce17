-- Takes one token from a bucket as the published function for YugabyteDB and PostgreSQL does, peculiarities included.
--
-- rate_id          the bucket
-- refill_per_sec   tokens per second
-- window_seconds   the time in which the capacity is refilled
-- half_even        how a half is rounded. False: away from zero, as in PostgreSQL 14 and later. True: to the even
--                  neighbor, as in older releases and YugabyteDB 2, whose extract() gives double precision
-- at_us            the time, microseconds since the Unix epoch; null for the server's clock. Only tests give one.
--
-- Returns the remaining tokens: the request is granted if and only if they are not negative.
-- Atomic: one statement. The published instructions run it in a SERIALIZABLE transaction and repeat it after error
-- 40001; do the same.
--
-- Peculiarities that are kept on purpose: the capacity is applied after the token is subtracted, so a full bucket
-- grants one more request than its capacity; tokens are whole, so fractions are lost or gained; a refused request is
-- charged, too; and the stored time is the start of the transaction, while the time since then is measured to the
-- present time of the clock. So the time that a request waits in its transaction refills the bucket for this request
-- and again for the next one.
create or replace function headcount.rate_limiting_token_bucket_request(
  rate_id bytea, refill_per_sec bigint, window_seconds bigint,
  half_even boolean default false, at_us bigint default null)
returns bigint
language sql volatile as $$
  insert into headcount.rate_limiting_token_bucket as bucket (id, tk, ts)
  values (
    rate_id,
    refill_per_sec * window_seconds - 1,
    coalesce(timestamptz 'epoch' + at_us * interval '1 microsecond', now()))
  on conflict (id) do update set
    ts = excluded.ts,
    tk = (
      select case
        when half_even then greatest(-1, least(capacity, bucket.tk - 1 + refill_per_sec * elapsed::float8))::bigint
        else greatest(-1, least(capacity, bucket.tk - 1 + refill_per_sec * elapsed::numeric))::bigint
      end
      from (select
        refill_per_sec * window_seconds as capacity,
        extract(epoch from
          coalesce(timestamptz 'epoch' + at_us * interval '1 microsecond', clock_timestamp()) - bucket.ts) as elapsed
      ) as found)
  returning tk
$$;

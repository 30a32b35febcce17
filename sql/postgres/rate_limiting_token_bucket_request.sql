-- Takes one token from a bucket as the published function for YugabyteDB and PostgreSQL does, quirks and all.
--
-- rate_id          which bucket
-- refill_per_sec   tokens per second
-- window_seconds   the capacity is what comes in so many seconds
-- half_even        how a half is rounded: false as PostgreSQL 14 and later do, away from zero; true as older ones and
--                  YugabyteDB 2 do, to the even neighbour, because their extract() gives double precision
-- at_us            the time, microseconds since the Unix epoch; null is the server's clock. Only tests say one.
--
-- Returns the tokens that are left: the request is granted if and only if they are not negative.
-- Atomic: one statement. It is to run SERIALIZABLE and to be tried again on 40001, as published.
--
-- What it does otherwise than one would wish, on purpose: the capacity is a bound after the take, so that an idle
-- bucket yields one more; tokens are whole, so that fractions are lost or won; a refused request pays too; and the time
-- that is stored is when the transaction began, but the time that is compared is the clock's, so that waiting counts
-- twice.
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

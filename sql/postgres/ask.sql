-- Asks a bucket for permits, in exact arithmetic: one time per key, the theoretical arrival time of the next request.
--
-- bucket_id     which bucket
-- span_ns       the time in which the whole burst comes back, nanoseconds
-- interval_ns   the time in which one permit comes back, nanoseconds; 0 if there is always one
-- permits       how many; -1 is whatever can be had at once
-- max_wait_ns   how long the caller would wait, nanoseconds
-- take          whether what is granted is charged
-- at_ns         the time, nanoseconds since the Unix epoch; null is the server's clock. Only tests say one.
--
-- Returns one row: the time it decided at, the state that it found (zeros: never asked for), and whether it granted.
-- The caller words its answer from these four, with the same arithmetic.
-- Atomic: what is granted is decided with the row locked before the clock is read, once; so nobody is granted anything on a
-- state or a time that another has outrun. A refusal needs no lock and writes nothing: whatever others take meanwhile
-- makes it no less true, and those who hammer a key do not queue for it. Read committed is enough; a serializable
-- session may have to try again (40001).
create or replace function headcount.ask(
  bucket_id bytea, span_ns bigint, interval_ns bigint, permits bigint, max_wait_ns bigint, take boolean,
  at_ns bigint default null,
  out now_ns bigint, out was_tat bigint, out was_as_of bigint, out granted boolean)
language plpgsql volatile as $$
declare
  held boolean := false;
  cut bigint;
  base bigint;
  cost numeric;
  next numeric;
begin
  loop
    if held then
      select b.tat, b.as_of into was_tat, was_as_of from headcount.buckets b where b.id = bucket_id for update;
      if not found then
        -- Somebody else may insert or purge it meanwhile: only a row that was locked counts.
        insert into headcount.buckets (id, tat, as_of) values (bucket_id, 0, 0) on conflict do nothing;
        continue;
      end if;
    else
      select b.tat, b.as_of into was_tat, was_as_of from headcount.buckets b where b.id = bucket_id;
      if not found then
        was_tat := 0;
        was_as_of := 0;
      end if;
    end if;
    now_ns := coalesce(at_ns, (extract(epoch from clock_timestamp()) * 1000000)::bigint * 1000);
    -- A clock that goes back neither makes permits nor burns them.
    cut := greatest(now_ns, was_as_of);
    base := greatest(was_tat, cut);
    cost := case
      when permits >= 0 then permits
      when interval_ns = 0 then 0
      else greatest(0, div(span_ns - (base - cut)::numeric, interval_ns))
    end;
    next := base + cost * interval_ns;
    granted := next - cut - span_ns <= max_wait_ns;
    exit when held or not take or not granted;
    held := true;
  end loop;
  if granted and take then
    update headcount.buckets b set tat = next::bigint, as_of = cut where b.id = bucket_id;
  end if;
end
$$;

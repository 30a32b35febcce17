-- Asks a bucket for permits, in exact arithmetic: one time per key, the theoretical arrival time of the next request.
--
-- bucket_id     which bucket
-- span_ns       the time in which the whole burst comes back, nanoseconds
-- interval_ns   the time in which one permit comes back, nanoseconds; 0 if there is always one. Below zero none ever
-- comes
--               back, and time stands still at 0: so many nanoseconds are what a permit counts for
-- permits       how many; -1 is whatever can be had at once
-- max_wait_ns   how long the caller would wait, nanoseconds
-- take          whether what is granted is charged
-- at_ns         the time, nanoseconds since the Unix epoch; null is the server's clock. Only tests say one.
--
-- Returns one row: the time it decided at, the state that it found (zeros: never asked for), told under this policy,
-- and whether it granted. The caller words its answer from these four, with the same arithmetic.
-- Atomic: what is granted is decided with the row locked before the clock is read, once; so nobody is granted anything
-- on a state or a time that another has outrun. A refusal needs no lock and writes nothing: whatever others take
-- meanwhile makes it no less true, and those who hammer a key do not queue for it. But a state of another policy is
-- told anew at once, even if it is refused: else it would go on under the old one until it is granted something. Read
-- committed is enough; a serializable session may have to try again (40001).
create or replace function headcount.ask(
  bucket_id bytea, span_ns bigint, interval_ns bigint, permits bigint, max_wait_ns bigint, take boolean,
  at_ns bigint default null,
  out now_ns bigint, out was_tat bigint, out was_as_of bigint, out granted boolean)
language plpgsql volatile as $$
declare
  held boolean := false;
  unit bigint := abs(interval_ns);
  was_span bigint;
  was_interval bigint;
  is_told_anew boolean;
  cut bigint;
  base bigint;
  cost numeric;
  next numeric;
begin
  loop
    if held then
      select b.tat, b.as_of, b.span_ns, b.interval_ns into was_tat, was_as_of, was_span, was_interval
        from headcount.buckets b where b.id = bucket_id for update;
      if not found then
        -- Somebody else may insert or purge it meanwhile: only a row that was locked counts.
        insert into headcount.buckets (id, tat, as_of) values (bucket_id, 0, 0) on conflict do nothing;
        continue;
      end if;
    else
      select b.tat, b.as_of, b.span_ns, b.interval_ns into was_tat, was_as_of, was_span, was_interval
        from headcount.buckets b where b.id = bucket_id;
      if not found then
        was_tat := 0;
        was_as_of := 0;
        was_span := span_ns;
        was_interval := interval_ns;
      end if;
    end if;
    now_ns := coalesce(at_ns, (extract(epoch from clock_timestamp()) * 1000000)::bigint * 1000);
    -- A row of version 1 does not say; it is told under this policy from now on.
    is_told_anew := was_span is distinct from span_ns or was_interval is distinct from interval_ns;
    if is_told_anew then
      select t.tat, t.as_of into was_tat, was_as_of
        from headcount.convert_state(was_tat, was_as_of, was_span, was_interval, span_ns, interval_ns, now_ns) t;
    end if;
    if interval_ns < 0 then
      now_ns := 0;
    end if;
    -- A clock that goes back neither makes permits nor burns them.
    cut := greatest(now_ns, was_as_of);
    base := greatest(was_tat, cut);
    cost := case
      when permits >= 0 then permits
      when unit = 0 then 0
      else greatest(0, div(span_ns - (base - cut)::numeric, unit))
    end;
    next := base + cost * unit;
    granted := next - cut - span_ns <= max_wait_ns;
    exit when held or not take or not (granted or is_told_anew);
    held := true;
  end loop;
  if take and granted then
    update headcount.buckets b
      set tat = next::bigint, as_of = cut, span_ns = ask.span_ns, interval_ns = ask.interval_ns where b.id = bucket_id;
  elsif take and is_told_anew then
    update headcount.buckets b
      set tat = was_tat, as_of = was_as_of, span_ns = ask.span_ns, interval_ns = ask.interval_ns where b.id = bucket_id;
  end if;
end
$$;

-- Asks a bucket for permits, in exact arithmetic: one time per key, the theoretical arrival time of the next request.
--
-- bucket_id     the bucket
-- span_ns       the time in which the whole burst is refilled, in nanoseconds
-- interval_ns   the time in which one permit is refilled, in nanoseconds; 0 if there is always one. A negative number
--               means that no permit is ever refilled: time stands still at 0, and a permit counts as this many
--               nanoseconds
-- permits       the number of permits; -1 for as many as are available at once
-- max_wait_ns   the longest wait that the caller accepts, in nanoseconds
-- take          whether granted permits are charged
-- at_ns         the time, nanoseconds since the Unix epoch; null for the server's clock. Only tests give one.
--
-- Returns one row: now_ns, the time of the decision; was_tat and was_as_of, the state before the decision, converted to
-- this policy (zeros if the bucket was never asked for); and granted, whether the permits are granted. The caller
-- computes its answer from these four, with the same arithmetic.
-- Atomic: permits are granted only after the row was locked and then the clock was read once, so no decision uses an
-- outdated state or time. A refusal takes no lock and writes nothing, because it stays right whatever other requests
-- take. So frequent requests for a refused key do not wait for each other. A state of another policy is converted at
-- once, even by a refusal; otherwise it would stay under the old policy until a request is granted. Read committed is
-- sufficient; in a serializable session, the call may have to be repeated (40001).
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
    -- A row of version 1 contains no policy. From now on it belongs to this one.
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

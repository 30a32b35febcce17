-- Forgets buckets that would be answered like new ones.
--
-- $1   how many at most
--
-- Returns the number of rows as the statement's count.
-- Atomic: one statement; rows that somebody is asking for are skipped, and an asker that waits for a row which goes away
-- inserts a new one. A bucket whose rate is zero stands at time 0 and never becomes new: it is left.
delete from headcount.buckets where id in (
  select id from headcount.buckets,
    (select (extract(epoch from clock_timestamp()) * 1000000)::bigint * 1000 as ns) as now
  where tat <= now.ns and as_of <= now.ns and as_of > 0
  limit $1
  for update of buckets skip locked)

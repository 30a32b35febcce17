-- Deletes buckets that would be answered like new ones, among the next rows of the table.
--
-- $1   the number of rows to read
-- $2   the largest number of rows to delete
--
-- Returns one row: whether the statement could lock `purge_place`, how many rows it read, and how many it deleted. If
-- it had the lock and read fewer than $1 rows, the table has ended, and the next statement starts at the beginning.
-- Atomic: one statement. It locks the row of `purge_place`, which says where the last purge ended; if the row is
-- locked, it does nothing. It skips rows that requests have locked. A request that waits for a row which is then
-- deleted inserts a new one. No statement waits while it holds a lock, so there is no deadlock. The table is read in
-- the order of its key, because an index on the time would have to be written for each granted request. A bucket whose
-- rate is zero stays at time 0 and is never deleted.
with place as (
  select up_to from headcount.purge_place for update skip locked),
seen as materialized (
  select id from headcount.buckets where id > (select up_to from place) order by id limit $1),
gone as (
  delete from headcount.buckets where id in (
    select id from headcount.buckets,
      (select (extract(epoch from clock_timestamp()) * 1000000)::bigint * 1000 as ns) as now
    where id in (select id from seen) and tat <= now.ns and as_of <= now.ns and as_of > 0
    limit $2
    for update of buckets skip locked)
  returning 1),
moved as (
  update headcount.purge_place
  set up_to = case when (select count(*) from seen) < $1 then '' else (select id from seen order by id desc limit 1) end
  where exists (select from place))
select exists (select from place), (select count(*) from seen), (select count(*) from gone)

-- Forgets buckets that would be answered like new ones, among the next ones of the table.
--
-- $1   how many to look at
-- $2   how many to forget at most
--
-- Returns one row: whether it was this statement's turn, how many it looked at, and how many it forgot. Fewer looks
-- than $1 are the end of the table, after which the next statement begins anew.
-- Atomic: one statement. It locks the row of `purge_place`, which says where the last purge ended: a server that finds
-- it locked does nothing. Rows that an asker has locked are skipped, and an asker that waits for a row which goes away
-- inserts a new one: no statement waits while it holds a row, so there is no deadlock. The table is read in the order
-- of its key, because an index on the time would have to be written at each grant. A bucket whose rate is zero stands
-- at time 0 and never becomes new: it is left.
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

-- The tables of the PostgreSQL store, in a schema of their own. Version 3.
--
-- Takes nothing. Returns nothing. Times are nanoseconds since the Unix epoch, except those of the type timestamptz.
-- Atomic: install() runs it inside one transaction that holds an advisory lock, so that installations run one after
-- another. Each statement may be run again.
create schema if not exists headcount;

-- One row: the version of the installed schema.
create table if not exists headcount.schema_version (
  one boolean primary key default true check (one),
  version integer not null
);

-- One row per key with a granted request: the state of the policy `Gcra`, and its policy, as in `ask`. Free space in
-- each page lets an update stay in its page, and no index covers a column that changes.
create table if not exists headcount.buckets (
  id bytea primary key,
  tat bigint not null,
  as_of bigint not null,
  span_ns bigint,
  interval_ns bigint
) with (fillfactor = 70);
-- Version 1 did not store the policy: each of its rows takes the policy of the first request for it after the upgrade.
alter table headcount.buckets add column if not exists span_ns bigint, add column if not exists interval_ns bigint;

-- One row: the last bucket that the purge has read.
create table if not exists headcount.purge_place (
  one boolean primary key default true check (one),
  up_to bytea not null default ''
);
insert into headcount.purge_place default values on conflict do nothing;

-- The table of the published function: whole tokens, and the time at which they were counted.
create table if not exists headcount.rate_limiting_token_bucket (
  id bytea primary key,
  tk bigint not null,
  ts timestamptz not null
) with (fillfactor = 70);

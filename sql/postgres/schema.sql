-- The tables of the PostgreSQL store, in a schema of their own. Version 1.
--
-- Takes nothing; times are nanoseconds since the Unix epoch unless said. Returns nothing.
-- Atomic: install() runs it inside one transaction that holds an advisory lock, so that two installs follow each other.
-- Each statement may be run again.
create schema if not exists headcount;

-- One row: the version of what is installed.
create table if not exists headcount.schema_version (
  one boolean primary key default true check (one),
  version integer not null
);

-- One row per key that was granted something: the state of the policy `Tat`. The room in each page lets an update stay
-- in its page, and no index is on what changes.
create table if not exists headcount.buckets (
  id bytea primary key,
  tat bigint not null,
  as_of bigint not null
) with (fillfactor = 70);

-- The table of the published function: whole tokens, and when they were counted.
create table if not exists headcount.rate_limiting_token_bucket (
  id bytea primary key,
  tk bigint not null,
  ts timestamptz not null
) with (fillfactor = 70);

-- The bucket locks: a row per zone and key. Calls for one key lock the row, and so run one after another.
--
-- Takes and returns nothing. May be run again.
-- Atomic: install() holds the lock 'headcount.install' of the database.
CREATE TABLE IF NOT EXISTS headcount_bucket_locks (
  zone_id INT UNSIGNED NOT NULL,
  bucket_key VARBINARY(255) NOT NULL,
  PRIMARY KEY (zone_id, bucket_key)
) ENGINE = InnoDB

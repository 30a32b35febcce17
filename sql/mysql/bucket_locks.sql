-- The bucket locks: a row per zone and key, whose lock is what makes the calls for one key follow each other.
--
-- Takes and returns nothing. May be run again.
-- Atomic: install() holds the lock 'headcount.install' of the database meanwhile.
CREATE TABLE IF NOT EXISTS headcount_bucket_locks (
  zone_id INT UNSIGNED NOT NULL,
  bucket_key VARBINARY(255) NOT NULL,
  PRIMARY KEY (zone_id, bucket_key)
) ENGINE = InnoDB

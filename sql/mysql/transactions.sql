-- The transactions: every attempt, let through or blocked, with its number and when it was. Times are UTC, whole seconds:
-- a DATETIME knows neither summer time nor the year 2038.
--
-- The index `counted` answers the one question of the hot path, how many were let through in the window, without reading
-- the table; `oldest` is for the purge. The published table has neither.
--
-- Takes and returns nothing. May be run again.
-- Atomic: install() holds the lock 'headcount.install' of the database meanwhile.
CREATE TABLE IF NOT EXISTS headcount_transactions (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  zone_id INT UNSIGNED NOT NULL,
  bucket_key VARBINARY(255) NOT NULL,
  blocked TINYINT NOT NULL,
  created_at DATETIME NOT NULL,
  permits INT UNSIGNED NOT NULL DEFAULT 1,
  KEY counted (zone_id, bucket_key, blocked, created_at, permits),
  KEY oldest (zone_id, created_at)
) ENGINE = InnoDB

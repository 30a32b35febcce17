-- The transactions: every attempt, allowed or blocked.
--
-- id           its number; later ones of a key have higher ones
-- zone_id      the zone; and bucket_key: the bucket in it. A key of 255 bytes ends in the SHA-256 of a longer one
-- blocked      1 if it was refused: then it is history only, and does not count
-- created_at   when it was, in UTC and whole seconds, whatever the server's time zone is: a DATETIME is stored as it is
--              written, and knows neither summer time nor the year 2038
-- permits      the number of permits
--
-- The index `counted` finds the number of allowed attempts in the window without reading the table. The index `oldest`
-- is for the purge. The published table has neither.
--
-- Takes and returns nothing. May be run again.
-- Atomic: install() holds the lock 'headcount.install' of the database.
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

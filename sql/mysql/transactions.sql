-- The transactions: every attempt, allowed or blocked.
--
-- id           the number of the attempt; later attempts of a key have higher numbers
-- zone_id      the zone
-- bucket_key   the bucket in the zone. A key of 255 bytes or more is stored as its beginning and its SHA-256, 255 bytes
--              together
-- blocked      1 if the attempt was refused: then it is history only, and does not count
-- created_at   the time of the attempt, in UTC and whole seconds, whatever the server's time zone is: a DATETIME is
--              stored as it is written, without a time zone, and does not end in the year 2038
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

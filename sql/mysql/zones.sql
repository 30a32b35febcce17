-- The zones: one for each use case, so many permits in so many seconds. Version 2.
--
-- id            the number by which a limiter names it
-- rate          how many permits in a window
-- window_s      how long the window is, seconds
-- description   what the zone is for, in words for people; nothing reads it. Version 1 lacked it
--
-- Takes and returns nothing. May be run again.
-- Atomic: install() holds the lock 'headcount.install' of the database meanwhile.
CREATE TABLE IF NOT EXISTS headcount_zones (
  id INT UNSIGNED NOT NULL PRIMARY KEY,
  rate INT UNSIGNED NOT NULL CHECK (rate > 0),
  window_s INT UNSIGNED NOT NULL CHECK (window_s > 0),
  description VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL DEFAULT ''
) ENGINE = InnoDB

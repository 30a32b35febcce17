-- The zones: one for each use case, with a number of permits in a number of seconds. Version 2.
--
-- id            the number that a limiter uses
-- rate          the number of permits in a window
-- window_s      the length of the window in seconds
-- description   a text for people; no program reads it. Version 1 did not have it
--
-- Takes and returns nothing. May be run again.
-- Atomic: install() holds the lock 'headcount.install' of the database.
CREATE TABLE IF NOT EXISTS headcount_zones (
  id INT UNSIGNED NOT NULL PRIMARY KEY,
  rate INT UNSIGNED NOT NULL CHECK (rate > 0),
  window_s INT UNSIGNED NOT NULL CHECK (window_s > 0),
  description VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL DEFAULT ''
) ENGINE = InnoDB

-- The zones: one for each use case, so many permits in so many seconds.
--
-- Takes and returns nothing. May be run again.
-- Atomic: install() holds the lock 'headcount.install' of the database meanwhile.
CREATE TABLE IF NOT EXISTS headcount_zones (
  id INT UNSIGNED NOT NULL PRIMARY KEY,
  rate INT UNSIGNED NOT NULL CHECK (rate > 0),
  window_s INT UNSIGNED NOT NULL CHECK (window_s > 0)
) ENGINE = InnoDB

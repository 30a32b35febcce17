-- One row: the version of the installed schema.
--
-- Takes and returns nothing. May be run again.
-- Atomic: two servers never run it at once, because install() holds a named lock while it runs this and the other
-- files.
CREATE TABLE IF NOT EXISTS headcount_version (
  one TINYINT NOT NULL DEFAULT 1 PRIMARY KEY CHECK (one = 1),
  version INT UNSIGNED NOT NULL
) ENGINE = InnoDB

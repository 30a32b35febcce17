-- Decides about an attempt in a zone, and records it. The common part of `check_velocity` and `headcount_ask`.
--
-- p_zone_id     the zone
-- p_bucket_key  the bucket in the zone, at most 255 bytes
-- p_permits     the number of permits; NULL for as many as possible
-- p_take        whether the attempt is made; otherwise it is only a look, which locks and writes nothing
-- p_at          the time, seconds since the Unix epoch; NULL for the server's clock. Only tests give one.
--
-- Returns in its OUT parameters:
-- v_blocked      whether the attempt is blocked
-- v_transaction  the number of the transaction; NULL if nothing was recorded
-- v_rate         the permits of the zone in a window; and v_window: the length of the window in seconds
-- v_now          the time of the attempt
-- v_held         the permits that count after the attempt
-- v_room_after   the time of the attempt that must leave the window before there is room for this attempt; NULL if
--                there is room, or never will be
-- v_next_after   the time of the attempt that must leave the window before there is room for one more permit after this
--                attempt; NULL if there is room
-- v_last         the time of the last attempt that counts; NULL if none counts
-- The first result set of the call is the lock row, as published.
--
-- Atomic: it locks the row, counts, and inserts, in one transaction. The count reads what was committed when it begins,
-- which is after the row was locked. START TRANSACTION commits a transaction that the caller has open.
--
-- Differences from the published procedure: an unknown zone is an error (1644, message 'unknown zone'), while the
-- original compared with NULL and blocked nobody. If the clock goes back, time stands still until the clock has caught
-- up, so that no attempt is allowed or blocked because of it.
CREATE PROCEDURE headcount_decide(
  IN p_zone_id INT UNSIGNED, IN p_bucket_key VARBINARY(255), IN p_permits INT UNSIGNED, IN p_take BOOLEAN,
  IN p_at BIGINT,
  OUT v_blocked TINYINT, OUT v_transaction BIGINT UNSIGNED, OUT v_rate INT UNSIGNED, OUT v_window INT UNSIGNED,
  OUT v_now DATETIME, OUT v_held BIGINT UNSIGNED, OUT v_room_after DATETIME, OUT v_next_after DATETIME,
  OUT v_last DATETIME)
SQL SECURITY INVOKER
MODIFIES SQL DATA
COMMENT 'headcount'
BEGIN
  DECLARE v_lock VARBINARY(255) DEFAULT NULL;
  DECLARE v_tries INT DEFAULT 0;
  DECLARE v_since DATETIME;
  DECLARE v_latest DATETIME;
  DECLARE v_too_many BIGINT;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK;
    RESIGNAL;
  END;

  IF p_bucket_key IS NULL OR p_take IS NULL THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'p_bucket_key and p_take must not be NULL';
  END IF;
  SELECT rate, window_s INTO v_rate, v_window FROM headcount_zones WHERE id = p_zone_id;
  IF v_rate IS NULL THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'unknown zone';
  END IF;

  IF p_take THEN
    won: LOOP
      START TRANSACTION;
      SELECT bucket_key INTO v_lock FROM headcount_bucket_locks
        WHERE zone_id = p_zone_id AND bucket_key = p_bucket_key FOR UPDATE;
      IF v_lock IS NOT NULL THEN
        LEAVE won;
      END IF;
      -- The row is inserted in a transaction of its own. Several callers can hold a lock on the gap where the row is
      -- missing, and with these locks their inserts would deadlock.
      ROLLBACK;
      SET v_tries = v_tries + 1;
      IF v_tries > 20 THEN
        SIGNAL SQLSTATE '45001' SET MESSAGE_TEXT = 'the bucket lock vanishes as soon as it is made';
      END IF;
      INSERT INTO headcount_bucket_locks (zone_id, bucket_key) VALUES (p_zone_id, p_bucket_key)
        ON DUPLICATE KEY UPDATE zone_id = p_zone_id;
    END LOOP;
  ELSE
    START TRANSACTION;
  END IF;
  SELECT p_bucket_key AS bucket_key;

  SET v_now = IF(p_at IS NULL, UTC_TIMESTAMP(), TIMESTAMPADD(SECOND, p_at, '1970-01-01 00:00:00'));
  SELECT MAX(created_at) INTO v_latest FROM headcount_transactions
    WHERE zone_id = p_zone_id AND bucket_key = p_bucket_key AND blocked = 0;
  SET v_now = GREATEST(v_now, IFNULL(v_latest, v_now));
  SELECT MAX(created_at) INTO v_latest FROM headcount_transactions
    WHERE zone_id = p_zone_id AND bucket_key = p_bucket_key AND blocked = 1;
  SET v_now = GREATEST(v_now, IFNULL(v_latest, v_now));

  -- Closed: an attempt exactly as old as the window still counts.
  SET v_since = TIMESTAMPADD(SECOND, -CAST(v_window AS SIGNED), v_now);
  SELECT IFNULL(SUM(permits), 0), MAX(created_at) INTO v_held, v_last FROM headcount_transactions
    WHERE zone_id = p_zone_id AND bucket_key = p_bucket_key AND blocked = 0 AND created_at >= v_since;
  SET p_permits = IFNULL(p_permits, CAST(v_rate AS SIGNED) - CAST(LEAST(v_held, v_rate) AS SIGNED));
  SET v_blocked = p_permits > 0 AND v_held + p_permits > v_rate;

  IF v_blocked AND p_permits <= v_rate THEN
    SET v_too_many = v_held + p_permits - v_rate;
    SELECT MIN(created_at) INTO v_room_after FROM (
      SELECT created_at, SUM(permits) OVER (ORDER BY created_at, id) AS gone FROM headcount_transactions
        WHERE zone_id = p_zone_id AND bucket_key = p_bucket_key AND blocked = 0 AND created_at >= v_since
    ) AS leaving WHERE gone >= v_too_many;
  END IF;
  IF NOT v_blocked AND p_permits > 0 THEN
    SET v_held = v_held + p_permits;
    SET v_last = v_now;
  END IF;
  IF v_held + 1 > v_rate THEN
    SET v_too_many = v_held + 1 - v_rate;
    SELECT MIN(created_at) INTO v_next_after FROM (
      SELECT created_at, SUM(permits) OVER (ORDER BY created_at, id) AS gone FROM headcount_transactions
        WHERE zone_id = p_zone_id AND bucket_key = p_bucket_key AND blocked = 0 AND created_at >= v_since
    ) AS leaving WHERE gone >= v_too_many;
    -- If the earlier attempts are not enough, this attempt itself must leave.
    SET v_next_after = IFNULL(v_next_after, v_now);
  END IF;

  IF p_take AND p_permits > 0 THEN
    INSERT INTO headcount_transactions (zone_id, bucket_key, blocked, created_at, permits)
      VALUES (p_zone_id, p_bucket_key, v_blocked, v_now, p_permits);
    SET v_transaction = LAST_INSERT_ID();
  END IF;
  COMMIT;
END

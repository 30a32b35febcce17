-- The published procedure, for other programs that call it: one attempt in a zone.
--
-- p_zone_id     the zone
-- p_bucket_key  the bucket in the zone, at most 255 bytes
--
-- Returns two result sets, both to be read: the lock row, and v_blocked, v_zone_txn_id, p_zone_id, p_bucket_key,
-- v_rate, v_window (seconds).
-- Atomic: because `headcount_decide` is.
CREATE PROCEDURE check_velocity(IN p_zone_id INT UNSIGNED, IN p_bucket_key VARBINARY(255))
SQL SECURITY INVOKER
MODIFIES SQL DATA
COMMENT 'headcount'
BEGIN
  DECLARE v_blocked TINYINT;
  DECLARE v_zone_txn_id, v_held BIGINT UNSIGNED;
  DECLARE v_rate, v_window INT UNSIGNED;
  DECLARE v_now, v_room_after, v_next_after, v_last DATETIME;
  CALL headcount_decide(p_zone_id, p_bucket_key, 1, TRUE, NULL,
    v_blocked, v_zone_txn_id, v_rate, v_window, v_now, v_held, v_room_after, v_next_after, v_last);
  SELECT v_blocked, v_zone_txn_id, p_zone_id, p_bucket_key, v_rate, v_window;
END

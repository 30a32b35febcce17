-- Asks a zone for permits: `headcount_decide`, with all that an answer says.
--
-- p_zone_id     which zone
-- p_bucket_key  which bucket of it, at most 255 bytes
-- p_permits     how many permits; NULL is all that can be had
-- p_take        whether the attempt is made, or only looked at
-- p_at          the time, seconds since the Unix epoch; NULL is the server's clock. Only tests say one.
--
-- Returns two result sets: the lock row, and one row: v_blocked, v_transaction (NULL if only looked at), v_rate,
-- v_window (seconds), v_held (permits that count after the attempt), and, as seconds since the Unix epoch, v_now,
-- v_room_after, v_next_after, v_last; see `headcount_decide`.
-- Atomic: as `headcount_decide`, which does it all.
CREATE PROCEDURE headcount_ask(
  IN p_zone_id INT UNSIGNED, IN p_bucket_key VARBINARY(255), IN p_permits INT UNSIGNED, IN p_take BOOLEAN,
  IN p_at BIGINT)
SQL SECURITY INVOKER
MODIFIES SQL DATA
COMMENT 'headcount'
BEGIN
  DECLARE v_blocked TINYINT;
  DECLARE v_transaction, v_held BIGINT UNSIGNED;
  DECLARE v_rate, v_window INT UNSIGNED;
  DECLARE v_now, v_room_after, v_next_after, v_last DATETIME;
  CALL headcount_decide(p_zone_id, p_bucket_key, p_permits, p_take, p_at,
    v_blocked, v_transaction, v_rate, v_window, v_now, v_held, v_room_after, v_next_after, v_last);
  SELECT v_blocked, v_transaction, v_rate, v_window, v_held,
    TIMESTAMPDIFF(SECOND, '1970-01-01', v_now) AS v_now,
    TIMESTAMPDIFF(SECOND, '1970-01-01', v_room_after) AS v_room_after,
    TIMESTAMPDIFF(SECOND, '1970-01-01', v_next_after) AS v_next_after,
    TIMESTAMPDIFF(SECOND, '1970-01-01', v_last) AS v_last;
END

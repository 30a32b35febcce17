-- Asks a zone for permits: calls `headcount_decide`, and returns everything that an answer needs.
--
-- p_zone_id     the zone
-- p_bucket_key  the bucket in the zone, at most 255 bytes
-- p_permits     the number of permits; NULL for as many as possible
-- p_take        whether the attempt is made; otherwise it is only a look
-- p_at          the time, seconds since the Unix epoch; NULL for the server's clock. Only tests give one.
--
-- Returns two result sets: the lock row, and one row: v_blocked, v_transaction (NULL for a look), v_rate,
-- v_window (seconds), v_held (permits that count after the attempt), and, as seconds since the Unix epoch, v_now,
-- v_room_after, v_next_after, v_last; see `headcount_decide`.
-- Atomic: because `headcount_decide` is.
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

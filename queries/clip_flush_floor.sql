-- What limits each head: clipping, underflow or rounding (no scale cures it).
-- Grain: one row per (candidate, tensor, layer, kv_head), the worst of each
-- candidate and tensor.
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -f .../queries/clip_flush_floor.sql
--
-- limited_by names what costs more than margin_db: clipping (a wider scale
-- helps), underflow (values so small that they flush to 0 or meet subnormal
-- steps: a narrower one helps), both, or else rounding: at the floor no scale
-- helps, only BF16 does. Where clipped values have all the error, as where
-- every value clips, it is clipping, whatever the margin.
--
-- Parameters
--   top        heads shown per candidate and tensor; 10
--   margin_db  loss that counts, dB; 3
--   candidate  this candidate alone; all
--   tensor     k or v alone; both
--   workload   this workload alone; all
--   source     this trace alone; all
--
-- Columns
--   candidate             the candidate's name
--   tensor                k or v
--   layer                 layer index
--   kv_head               global KV-head index
--   limited_by            clipping, underflow, clipping and underflow or
--                         rounding; NULL: nothing is lost, or the format has
--                         no floor (int8) and nothing is clipped
--   sqnr_db               signal to quantization noise, dB, higher better
--   unclipped_sqnr_db     the same without the clipped values' error; NULL:
--                         nothing else is lost
--   floor_db              what rounding alone leaves; NULL: the format has no
--                         such floor (int8)
--   clip_loss_db          unclipped_sqnr_db - sqnr_db; NULL: one of them is
--   underflow_loss_db     floor_db - unclipped_sqnr_db; noise within ±1;
--                         NULL: one of them is
--   clipped_frac          share of values clipped, 0 to 1
--   flushed_frac          share of values flushed to 0, 0 to 1
--   num_values            finite values
--   num_clipped           values
--   num_flushed           values
WITH sums AS (
  SELECT candidate, tensor, layer, kv_head,
    sum(num_values)::BIGINT AS num_values,
    sum(num_clipped)::BIGINT AS num_clipped,
    sum(num_flushed)::BIGINT AS num_flushed,
    sum(weight * num_values) AS w_values,
    sum(weight * num_clipped) AS w_clipped,
    sum(weight * num_flushed) AS w_flushed,
    sum(weight * sum_sq_signal) AS w_sq_signal,
    sum(weight * sum_sq_error) AS w_sq_error,
    -- Summed in different orders: what is left may lie just below 0.
    greatest(sum(weight * (sum_sq_error - sum_sq_clip_error)), 0)
      AS w_sq_other_error
  FROM cells JOIN sampling USING (source, sampling_id)
  WHERE candidate = coalesce(getvariable('candidate')::VARCHAR, candidate)
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY candidate, tensor, layer, kv_head
),
losses AS (
  SELECT ordinal, candidate, tensor, layer, kv_head,
    sqnr_db(w_sq_signal, w_sq_error) AS sqnr_db,
    sqnr_db(w_sq_signal, w_sq_other_error) AS unclipped_sqnr_db,
    rounding_floor_db(format, engine) AS floor_db,
    w_clipped / nullif(w_values, 0) AS clipped_frac,
    w_flushed / nullif(w_values, 0) AS flushed_frac,
    num_values, num_clipped, num_flushed,
    coalesce(getvariable('margin_db')::DOUBLE, 3) AS margin_db
  FROM sums JOIN candidates USING (candidate)
  WHERE kind <> 'bf16'
)
SELECT candidate, tensor, layer, kv_head,
  CASE
    WHEN sqnr_db IS NULL THEN NULL
    WHEN unclipped_sqnr_db IS NULL THEN 'clipping'
    WHEN unclipped_sqnr_db - sqnr_db > margin_db
      AND floor_db - unclipped_sqnr_db > margin_db
      THEN 'clipping and underflow'
    WHEN unclipped_sqnr_db - sqnr_db > margin_db THEN 'clipping'
    WHEN floor_db - unclipped_sqnr_db > margin_db THEN 'underflow'
    WHEN floor_db IS NULL THEN NULL
    ELSE 'rounding'
  END AS limited_by,
  sqnr_db, unclipped_sqnr_db, floor_db,
  unclipped_sqnr_db - sqnr_db AS clip_loss_db,
  floor_db - unclipped_sqnr_db AS underflow_loss_db,
  clipped_frac, flushed_frac, num_values, num_clipped, num_flushed
FROM losses
QUALIFY row_number() OVER (
    PARTITION BY candidate, tensor ORDER BY sqnr_db NULLS LAST, layer, kv_head
  ) <= coalesce(getvariable('top')::INTEGER, 10)
ORDER BY ordinal, tensor, sqnr_db NULLS LAST, layer, kv_head;

-- What limits each head: clipping, underflow or rounding (no scale cures it).
-- Grain: one row per (candidate, tensor, layer, kv_head), the most of each
-- candidate and tensor.
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/clip_flush_floor.sql
--
-- limited_by names what costs more than margin_db: clipping (a wider scale
-- helps), underflow (values so small that they flush to 0 or meet subnormal
-- steps: a narrower one helps), both, or else rounding: at the floor no scale
-- helps, only BF16 does. Where clipped values have all the error, as where
-- every value clips, it is clipping, whatever the margin.
--
-- Parameters
--   top        whole number from 1; 10  heads shown per candidate and tensor
--   margin_db  number from 0; 3         loss that counts, dB
--   candidate  candidate; all           this one alone
--   tensor     k or v; both             this tensor alone
--   workload   workload; all            this workload alone
--   source     trace; all               this trace alone
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
WITH losses AS (
  SELECT *, rounding_floor_db AS floor_db,
    sqnr_db(w_sq_signal, w_sq_other_error) AS unclipped_sqnr_db,
    unclipped_sqnr_db - sqnr_db AS clip_loss_db,
    floor_db - unclipped_sqnr_db AS underflow_loss_db,
    coalesce(getvariable('margin_db')::DOUBLE, 3) AS margin_db
  FROM value_sums(chosen_cells) JOIN quantizing USING (candidate)
)
SELECT candidate, tensor, layer, kv_head,
  CASE
    WHEN sqnr_db IS NULL THEN NULL
    WHEN unclipped_sqnr_db IS NULL THEN 'clipping'
    WHEN clip_loss_db > margin_db AND underflow_loss_db > margin_db
      THEN 'clipping and underflow'
    WHEN clip_loss_db > margin_db THEN 'clipping'
    WHEN underflow_loss_db > margin_db THEN 'underflow'
    WHEN floor_db IS NULL THEN NULL
    ELSE 'rounding'
  END AS limited_by,
  sqnr_db, unclipped_sqnr_db, floor_db, clip_loss_db, underflow_loss_db,
  clipped_frac, flushed_frac, num_values, num_clipped, num_flushed
FROM losses
QUALIFY row_number() OVER (
    PARTITION BY candidate, tensor ORDER BY sqnr_db NULLS LAST, layer, kv_head
  ) <= coalesce(getvariable('top')::INTEGER, 10)
ORDER BY ordinal, tensor, sqnr_db NULLS LAST, layer, kv_head;

-- K against V under every candidate, pooled and in the worst layer.
-- Grain: one row per (candidate, tensor).
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -f .../queries/compare_k_v.sql
--
-- Shares weigh each row by what it was sampled from; num_ are plain counts. A
-- run has no quantiles of single values; absmax_bands has those of vectors.
--
-- Parameters
--   candidate  this candidate alone; all
--   workload   this workload alone; all
--   source     this trace alone; all
--
-- Columns
--   candidate                 the candidate's name
--   tensor                    k or v
--   max_abs                   largest finite magnitude
--   out_of_range_frac         share of values out of range, 0 to 1
--   clipped_frac              share of values clipped, 0 to 1
--   worst_layer               layer with the largest share of values clipped;
--                             NULL: none clips
--   worst_layer_clipped_frac  its share of values clipped, 0 to 1
--   flushed_frac              share of values flushed to 0, 0 to 1
--   relative_error            root of (squared error / squared signal)
--   sqnr_db                   the same in dB, higher is better
--   clip_error_frac           share of the squared error due to clipping
--   num_values                finite values
--   num_out_of_range          values
--   num_clipped               values
--   num_flushed               values
WITH layers AS (
  SELECT candidate, tensor, layer,
    max(max_abs) AS max_abs,
    sum(num_values) AS num_values,
    sum(num_out_of_range) AS num_out_of_range,
    sum(num_clipped) AS num_clipped,
    sum(num_flushed) AS num_flushed,
    sum(weight * num_values) AS w_values,
    sum(weight * num_out_of_range) AS w_out_of_range,
    sum(weight * num_clipped) AS w_clipped,
    sum(weight * num_flushed) AS w_flushed,
    sum(weight * sum_sq_signal) AS w_sq_signal,
    sum(weight * sum_sq_error) AS w_sq_error,
    sum(weight * sum_sq_clip_error) AS w_sq_clip_error
  FROM cells JOIN sampling USING (source, sampling_id)
  WHERE candidate = coalesce(getvariable('candidate')::VARCHAR, candidate)
    AND workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY candidate, tensor, layer
),
sums AS (
  SELECT candidate, tensor,
    max(max_abs) AS max_abs,
    sum(num_values)::BIGINT AS num_values,
    sum(num_out_of_range)::BIGINT AS num_out_of_range,
    sum(num_clipped)::BIGINT AS num_clipped,
    sum(num_flushed)::BIGINT AS num_flushed,
    sum(w_values) AS w_values,
    sum(w_out_of_range) AS w_out_of_range,
    sum(w_clipped) AS w_clipped,
    sum(w_flushed) AS w_flushed,
    sum(w_sq_signal) AS w_sq_signal,
    sum(w_sq_error) AS w_sq_error,
    sum(w_sq_clip_error) AS w_sq_clip_error,
    min({'clipped': -w_clipped / w_values, 'layer': layer})
      FILTER (num_clipped > 0) AS worst
  FROM layers
  GROUP BY candidate, tensor
)
SELECT candidate, tensor, max_abs,
  w_out_of_range / nullif(w_values, 0) AS out_of_range_frac,
  w_clipped / nullif(w_values, 0) AS clipped_frac,
  worst.layer AS worst_layer,
  abs(worst.clipped) AS worst_layer_clipped_frac,
  w_flushed / nullif(w_values, 0) AS flushed_frac,
  sqrt(w_sq_error / nullif(w_sq_signal, 0)) AS relative_error,
  sqnr_db(w_sq_signal, w_sq_error) AS sqnr_db,
  w_sq_clip_error / nullif(w_sq_error, 0) AS clip_error_frac,
  num_values, num_out_of_range, num_clipped, num_flushed
FROM sums JOIN candidates USING (candidate)
ORDER BY ordinal, tensor;

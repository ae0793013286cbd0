-- K against V under every candidate, pooled and in the worst layer.
-- Grain: one row per (candidate, tensor).
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -f .../queries/compare_k_v.sql
--
-- Shares weigh each row by what it was sampled from; num_ are plain counts.
-- The view magnitudes has what other quantiles need; absmax_bands has those of
-- vectors, head by head.
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
--   p99_99_abs                99.99 % of the values are no larger, by weight;
--                             NULL: a replay without counts (--direct)
--   out_of_range_frac         share of values out of range, 0 to 1
--   clipped_frac              share of values clipped, 0 to 1
--   worst_layer               layer with the largest share of values clipped;
--                             NULL: none clips
--   worst_layer_clipped_frac  its share of values clipped, 0 to 1
--   flushed_frac              share of values flushed to 0, 0 to 1
--   relative_error            root of (squared error / squared signal)
--   sqnr_db                   the same in dB, higher is better
--   clip_error_frac           share of the squared error due to clipping
--   clipped_low               95 % interval of clipped_frac over requests;
--                             NULL: too few request groups, or a run
--                             without them (kvtrace replay --intervals);
--                             always for kind online
--   clipped_high              its upper end; so are the next ones
--   clip_error_low            of clip_error_frac
--   clip_error_high           of clip_error_frac
--   sqnr_low_db               of sqnr_db
--   sqnr_high_db              of sqnr_db
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
),
counted AS (
  SELECT candidate, tensor, magnitude, sum(weight * num_values) AS w_values
  FROM magnitudes
    JOIN sampling USING (source, sampling_id)
    JOIN candidate_sources USING (source)
  WHERE candidate = coalesce(getvariable('candidate')::VARCHAR, candidate)
    AND workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY ALL
),
shares AS (
  SELECT candidate, tensor, magnitude,
    sum(w_values) OVER (PARTITION BY candidate, tensor ORDER BY magnitude)
      / sum(w_values) OVER (PARTITION BY candidate, tensor) AS share
  FROM counted
),
quantiles AS (
  SELECT candidate, tensor,
    min(magnitude) FILTER (share >= 0.9999 - 1e-12) AS p99_99_abs
  FROM shares
  GROUP BY candidate, tensor
),
-- The same sums by request group, for the intervals of ratios.
grouped AS (
  SELECT candidate, tensor, request_group,
    sum(weight * num_values) AS w_values,
    sum(weight * num_clipped) AS w_clipped,
    sum(weight * sum_sq_signal) AS w_sq_signal,
    sum(weight * sum_sq_error) AS w_sq_error,
    sum(weight * sum_sq_clip_error) AS w_sq_clip_error
  FROM groups JOIN sampling USING (source, sampling_id)
  WHERE candidate = coalesce(getvariable('candidate')::VARCHAR, candidate)
    AND workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY ALL
),
group_lists AS (
  SELECT candidate, tensor,
    list(w_values ORDER BY request_group) AS g_values,
    list(w_clipped ORDER BY request_group) AS g_clipped,
    list(w_sq_signal ORDER BY request_group) AS g_sq_signal,
    list(w_sq_error ORDER BY request_group) AS g_sq_error,
    list(w_sq_clip_error ORDER BY request_group) AS g_sq_clip_error
  FROM grouped
  GROUP BY candidate, tensor
)
SELECT candidate, tensor, max_abs, p99_99_abs,
  w_out_of_range / nullif(w_values, 0) AS out_of_range_frac,
  w_clipped / nullif(w_values, 0) AS clipped_frac,
  worst.layer AS worst_layer,
  abs(worst.clipped) AS worst_layer_clipped_frac,
  w_flushed / nullif(w_values, 0) AS flushed_frac,
  sqrt(w_sq_error / nullif(w_sq_signal, 0)) AS relative_error,
  sqnr_db(w_sq_signal, w_sq_error) AS sqnr_db,
  w_sq_clip_error / nullif(w_sq_error, 0) AS clip_error_frac,
  ratio_low(g_clipped, g_values) AS clipped_low,
  ratio_high(g_clipped, g_values) AS clipped_high,
  ratio_low(g_sq_clip_error, g_sq_error) AS clip_error_low,
  ratio_high(g_sq_clip_error, g_sq_error) AS clip_error_high,
  sqnr_db(ratio_low(g_sq_signal, g_sq_error), 1) AS sqnr_low_db,
  sqnr_db(ratio_high(g_sq_signal, g_sq_error), 1) AS sqnr_high_db,
  num_values, num_out_of_range, num_clipped, num_flushed
FROM sums
  JOIN candidates USING (candidate)
  LEFT JOIN quantiles USING (candidate, tensor)
  LEFT JOIN group_lists USING (candidate, tensor)
ORDER BY ordinal, tensor;

-- K against V under every candidate, pooled and in the layer that clips most.
-- Grain: one row per (candidate, tensor).
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/compare_k_v.sql
--
-- Shares weigh each row by what it was sampled from; num_ are plain counts.
-- The view magnitudes has what other quantiles need; absmax_bands has those of
-- vectors, head by head.
--
-- Parameters
--   candidate  candidate; all  this one alone
--   workload   workload; all   this workload alone
--   source     trace; all      this trace alone
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
WITH by_layer AS (
  SELECT * REPLACE (layer AS stratum) FROM chosen_cells
),
worst_layers AS (
  SELECT candidate, tensor,
    min({'clipped': -clipped_frac, 'layer': stratum})
      FILTER (num_clipped > 0) AS widest
  FROM value_totals(by_layer)
  GROUP BY candidate, tensor
),
quantiles AS (
  SELECT candidate, tensor,
    min(magnitude) FILTER (share >= 0.9999 - 1e-12) AS p99_99_abs
  FROM (
    SELECT candidate, tensor, magnitude,
      sum(sum(w_values)) OVER (same ORDER BY magnitude)
        / sum(sum(w_values)) OVER same AS share
    FROM chosen_magnitudes JOIN candidate_sources USING (source)
    GROUP BY candidate, tensor, magnitude
    WINDOW same AS (PARTITION BY candidate, tensor)
  )
  GROUP BY candidate, tensor
)
SELECT candidate, tensor, max_abs, p99_99_abs, out_of_range_frac, clipped_frac,
  widest.layer AS worst_layer,
  abs(widest.clipped) AS worst_layer_clipped_frac,
  flushed_frac, relative_error, sqnr_db, clip_error_frac,
  clipped_low, clipped_high, clip_error_low, clip_error_high, sqnr_low_db,
  sqnr_high_db, num_values, num_out_of_range, num_clipped, num_flushed
FROM value_totals(chosen_cells)
  JOIN candidates USING (candidate)
  JOIN worst_layers USING (candidate, tensor)
  LEFT JOIN quantiles USING (candidate, tensor)
  LEFT JOIN value_intervals(chosen_groups) USING (candidate, tensor)
ORDER BY ordinal, tensor;

-- Live magnitudes against those that the scales cover, least headroom first.
-- Grain: one row per (candidate, tensor, layer, kv_head), the first of each
-- candidate and tensor.
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/amax_coverage.sql
--
-- A maximum grows with the number of requests: a workload that was captured
-- more looks wider (amax_by_class compares them at equal size). Up to 464/448
-- beyond a covered magnitude nothing is clipped (e4m3fn).
--
-- Parameters
--   top        whole number from 1; 10  heads shown per candidate and tensor
--   candidate  candidate; all           this one alone
--   tensor     k or v; both             this tensor alone
--   source     trace; all               this trace alone
--
-- Columns
--   candidate         the candidate's name
--   tensor            k or v
--   layer             layer index
--   kv_head           global KV-head index
--   headroom          covered_amax / live_amax; below 1: out of range; NULL:
--                     every vector gets its own scale (kind online), so
--                     are covered_amax and scale
--   live_amax         largest finite magnitude captured
--   covered_amax      magnitude covered, the smallest over sources
--   calibrated_amax   largest magnitude of the calibration, by the artifact's
--                     manifest; NULL without one
--   drift             live_amax / calibrated_amax; above 1: values that the
--                     calibration never saw
--   scale             dequantization multiplier, the smallest over sources
--   widest_workload   the workload that live_amax is of
--   widest_phase      its phase
--   widest_from       first position of its octave
--   widest_to         last position of its octave
--   prefill_amax      largest magnitude in prompts; NULL: none captured
--   decode_amax       largest magnitude in outputs; NULL: none captured
--   num_vectors       vectors captured
WITH live AS (
  SELECT candidate, tensor, layer, kv_head,
    max(max_abs) AS live_amax,
    min({
      'amax': -max_abs, 'workload': workload, 'phase': phase,
      'octave': position_octave
    }) FILTER (max_abs IS NOT NULL) AS widest,
    max(max_abs) FILTER (phase = 'prefill') AS prefill_amax,
    max(max_abs) FILTER (phase = 'decode') AS decode_amax,
    sum(num_rows)::BIGINT AS num_vectors
  FROM chosen_cells
  GROUP BY candidate, tensor, layer, kv_head
)
SELECT candidate, tensor, layer, kv_head,
  share(covered_amax, live_amax) AS headroom, live_amax, covered_amax,
  calibrated_amax, share(live_amax, calibrated_amax) AS drift, scale,
  widest.workload AS widest_workload, widest.phase AS widest_phase,
  octave_from(widest.octave) AS widest_from,
  octave_to(widest.octave) AS widest_to,
  prefill_amax, decode_amax, num_vectors
FROM live
  JOIN covered_heads USING (candidate, tensor, layer, kv_head)
  JOIN quantizing USING (candidate)
QUALIFY row_number() OVER (
    PARTITION BY candidate, tensor
    ORDER BY headroom NULLS LAST, layer, kv_head
  ) <= coalesce(getvariable('top')::INTEGER, 10)
ORDER BY ordinal, tensor, headroom NULLS LAST, layer, kv_head;

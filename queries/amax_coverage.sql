-- Live magnitudes against those that the scales cover, least headroom first.
-- Grain: one row per (candidate, tensor, layer, kv_head), the first of each
-- candidate and tensor.
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -f .../queries/amax_coverage.sql
--
-- A maximum grows with the number of requests: a workload that was captured
-- more looks wider (amax_by_class compares them at equal size). Up to 464/448
-- beyond a covered magnitude nothing is clipped (e4m3fn).
--
-- Parameters
--   top        heads shown per candidate and tensor; 10
--   candidate  this candidate alone; all
--   tensor     k or v alone; both
--   source     this trace alone; all
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
    min({
      'amax': -max_abs, 'workload': workload, 'phase': phase,
      'octave': position_octave
    }) FILTER (max_abs IS NOT NULL) AS widest,
    max(max_abs) FILTER (phase = 'prefill') AS prefill_amax,
    max(max_abs) FILTER (phase = 'decode') AS decode_amax,
    sum(num_vectors)::BIGINT AS num_vectors
  FROM cells
  WHERE candidate = coalesce(getvariable('candidate')::VARCHAR, candidate)
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY candidate, tensor, layer, kv_head
),
covered AS (
  SELECT candidate, tensor, layer, kv_head,
    min(covered_amax) AS covered_amax,
    min(calibrated_amax) AS calibrated_amax, min(scale) AS scale
  FROM scales
  WHERE source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY candidate, tensor, layer, kv_head
),
joined AS (
  SELECT ordinal, candidate, tensor, layer, kv_head,
    covered_amax / nullif(abs(widest.amax), 0) AS headroom,
    abs(widest.amax) AS live_amax, covered_amax, calibrated_amax,
    abs(widest.amax) / nullif(calibrated_amax, 0) AS drift, scale,
    widest.workload AS widest_workload,
    widest.phase AS widest_phase,
    octave_from(widest.octave) AS widest_from,
    octave_to(widest.octave) AS widest_to,
    prefill_amax, decode_amax, num_vectors
  FROM live
    JOIN covered USING (candidate, tensor, layer, kv_head)
    JOIN candidates USING (candidate)
  WHERE kind <> 'bf16'
)
SELECT candidate, tensor, layer, kv_head, headroom, live_amax, covered_amax,
  calibrated_amax, drift, scale, widest_workload, widest_phase, widest_from,
  widest_to, prefill_amax, decode_amax, num_vectors
FROM joined
QUALIFY row_number() OVER (
    PARTITION BY candidate, tensor
    ORDER BY headroom NULLS LAST, layer, kv_head
  ) <= coalesce(getvariable('top')::INTEGER, 10)
ORDER BY ordinal, tensor, headroom NULLS LAST, layer, kv_head;

-- How wide a head's vectors are in each workload, along the positions.
-- Grain: one row per (tensor, layer, kv_head, workload, position_octave).
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -f .../queries/absmax_bands.sql
--
-- Magnitudes of the widest value of a vector (one token's values of one head),
-- of prefill and decode together. To compare with covered_amax of the view
-- scales: a vector above it leaves the range. Candidates play no part.
--
-- Parameters
--   tensor    k or v alone; both
--   layer     this layer alone; all
--   kv_head   this KV head alone; all
--   workload  this workload alone; all
--   source    this trace alone; all
--
-- Columns
--   tensor           k or v
--   layer            layer index
--   kv_head          global KV-head index
--   workload         the client's label, or unlabelled
--   position_octave  n: positions 2^n to 2^(n+1) - 1; 0 as 1
--   num_requests     requests with a vector here
--   num_vectors      vectors with a finite value
--   absmax_p50       half of the vectors are no wider, by weight
--   absmax_p90       nine in ten are no wider, by weight
--   absmax_p99       99 in 100 are no wider, by weight
--   absmax_max       the widest
WITH coded AS (
  SELECT source, tensor, layer, kv_head, workload, position_octave,
    magnitude(absmax_code, dtype) AS absmax,
    count(*) AS num_vectors,
    sum(weight) AS w_vectors
  FROM vectors
    JOIN vector_dtypes USING (source, layer, tensor)
    JOIN rows USING (source, "row")
    JOIN requests USING (source, request)
    JOIN sampling
      ON sampling.source = rows.source
      AND sampling.sampling_id = rows.sampling_id
  WHERE absmax_code IS NOT NULL
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND layer = coalesce(getvariable('layer')::INTEGER, layer)
    AND kv_head = coalesce(getvariable('kv_head')::INTEGER, kv_head)
    AND workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY ALL
),
ranked AS (
  SELECT tensor, layer, kv_head, workload, position_octave, absmax,
    num_vectors,
    sum(w_vectors) OVER up_to_here / sum(w_vectors) OVER stratum AS rank
  FROM coded
  WINDOW
    stratum AS (
      PARTITION BY tensor, layer, kv_head, workload, position_octave
    ),
    up_to_here AS (
      PARTITION BY tensor, layer, kv_head, workload, position_octave
      ORDER BY absmax
    )
),
tokens AS (
  SELECT workload, position_octave,
    count(DISTINCT (source, request)) AS num_requests
  FROM rows JOIN requests USING (source, request)
  WHERE source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY workload, position_octave
)
SELECT tensor, layer, kv_head, workload, position_octave,
  any_value(num_requests) AS num_requests,
  sum(num_vectors)::BIGINT AS num_vectors,
  min(absmax) FILTER (rank >= 0.5 - 1e-9) AS absmax_p50,
  min(absmax) FILTER (rank >= 0.9 - 1e-9) AS absmax_p90,
  min(absmax) FILTER (rank >= 0.99 - 1e-9) AS absmax_p99,
  max(absmax) AS absmax_max
FROM ranked JOIN tokens USING (workload, position_octave)
GROUP BY tensor, layer, kv_head, workload, position_octave
ORDER BY tensor, layer, kv_head, workload, position_octave;

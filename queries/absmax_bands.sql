-- How wide a head's vectors are in each workload, along the positions.
-- Grain: one row per (tensor, layer, kv_head, workload, position_octave).
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/absmax_bands.sql
--
-- Magnitudes of the widest value of a vector (one token's values of one head),
-- of prefill and decode together. To compare with covered_amax of the view
-- scales: a vector above it leaves the range. Candidates play no part.
--
-- Parameters
--   tensor    k or v; both   this tensor alone
--   layer     layer; all     this layer alone
--   kv_head   KV head; all   this KV head alone
--   workload  workload; all  this workload alone
--   source    trace; all     this trace alone
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
WITH strata AS (
  SELECT * REPLACE (
    {'workload': workload, 'octave': position_octave} AS stratum
  )
  FROM chosen_tokens
),
coded AS (
  SELECT tensor, layer, kv_head, stratum,
    magnitude(absmax_code, dtype) AS absmax,
    count(*) AS num_vectors,
    sum(weight) AS w_vectors
  FROM chosen_vectors
    JOIN layers USING (source, layer)
    JOIN strata USING (source, "row")
  WHERE absmax_code IS NOT NULL
  GROUP BY ALL
),
ranked AS (
  SELECT *,
    sum(w_vectors) OVER (same ORDER BY absmax) / sum(w_vectors) OVER same
      AS rank
  FROM coded
  WINDOW same AS (PARTITION BY tensor, layer, kv_head, stratum)
)
SELECT tensor, layer, kv_head, stratum.workload,
  stratum.octave AS position_octave,
  any_value(num_requests) AS num_requests,
  sum(num_vectors)::BIGINT AS num_vectors,
  min(absmax) FILTER (rank >= 0.5 - 1e-9) AS absmax_p50,
  min(absmax) FILTER (rank >= 0.9 - 1e-9) AS absmax_p90,
  min(absmax) FILTER (rank >= 0.99 - 1e-9) AS absmax_p99,
  max(absmax) AS absmax_max
FROM ranked JOIN coverage(strata) USING (stratum)
GROUP BY tensor, layer, kv_head, stratum
ORDER BY tensor, layer, kv_head, stratum;

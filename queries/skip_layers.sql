-- Layers that clip under every artifact: candidates for BF16.
-- Grain: one row per layer.
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/skip_layers.sql
--
-- A layer fails under an artifact when a K or V head of it clips more than the
-- limit. One that fails under all of them is suggested for vLLM's
-- kv_cache_dtype_skip_layers; if it fails under some, better scales exist.
--
-- Parameters
--   limit      number from 0 to 1; 0.001  share of a head's values that may be
--                                         clipped
--   candidate  candidate; all             this artifact alone; else all valid
--                                         ones
--   workload   workload; all              this workload alone
--   source     trace; all                 this trace alone
--
-- Columns
--   layer                    layer index
--   suggested                whether it fails under every artifact
--   num_artifacts            artifacts that quantize the layer
--   num_artifacts_failing    of them, those under which it fails
--   best_candidate           the artifact with the least clipping
--   best_clipped_frac        share clipped in the head there that clips most
--   best_kv_head             that head
--   best_tensor              k or v of that head
--   worst_clipped_frac       the same under the artifact with the most
--   best_sqnr_db             of the layer's K and V under best_candidate
--   num_values               finite values
WITH artifacts AS (
  SELECT cells.*
  FROM scaled_cells AS cells JOIN candidates USING (candidate)
  WHERE kind = 'artifact' AND scale IS NOT NULL
),
layers AS (
  SELECT candidate, layer,
    min({
      'clipped': -clipped_frac, 'tensor': tensor, 'kv_head': kv_head
    }) AS worst,
    sum(num_values)::BIGINT AS num_values,
    sqnr_db(sum(w_sq_signal), sum(w_sq_error)) AS sqnr_db
  FROM value_sums(artifacts)
  GROUP BY candidate, layer
),
ranked AS (
  SELECT layer,
    count(*) AS num_artifacts,
    count(*) FILTER (
      -worst.clipped > coalesce(getvariable('limit')::DOUBLE, 0.001)
    ) AS num_artifacts_failing,
    min({
      'clipped': -worst.clipped, 'ordinal': ordinal, 'candidate': candidate,
      'tensor': worst.tensor, 'kv_head': worst.kv_head, 'sqnr_db': sqnr_db
    }) AS best,
    max(-worst.clipped) AS worst_clipped_frac,
    max(num_values) AS num_values
  FROM layers JOIN candidates USING (candidate)
  GROUP BY layer
)
SELECT layer,
  num_artifacts_failing = num_artifacts AS suggested,
  num_artifacts, num_artifacts_failing,
  best.candidate AS best_candidate, abs(best.clipped) AS best_clipped_frac,
  best.kv_head AS best_kv_head, best.tensor AS best_tensor,
  abs(worst_clipped_frac) AS worst_clipped_frac,
  best.sqnr_db AS best_sqnr_db, num_values
FROM ranked
ORDER BY suggested DESC, best_clipped_frac DESC, worst_clipped_frac DESC,
  layer;

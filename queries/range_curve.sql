-- What any scale would leave out of range: per head, over a range of scales.
-- Grain: one row per (tensor, layer, kv_head, step).
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -f .../queries/range_curve.sql
--
-- A scale covers MAX × scale, so the curve over covered magnitudes holds for
-- every FP8 format. Step 0 covers the widest value seen; each step is a
-- quarter of a binade. Vectors alone: how many values of it leave the range,
-- and how many a scale flushes to 0, is known at the candidates' scales only
-- (rank_heads).
--
-- Parameters
--   tensor   k or v alone; both
--   layer    this layer alone; all
--   kv_head  this KV head alone; all
--   source   this trace alone; all
--   steps    steps below the widest value; 24
--
-- Columns
--   tensor                     k or v
--   layer                      layer index
--   kv_head                    global KV-head index
--   step                       0, -1, … quarters of a binade
--   covered_amax               magnitude that such a scale covers
--   vectors_out_of_range_frac  share of vectors beyond it, 0 to 1
--   num_vectors                vectors with a finite value
WITH coded AS (
  SELECT tensor, layer, kv_head, magnitude(absmax_code, dtype) AS absmax,
    count(*) AS num_vectors,
    sum(weight) AS w_vectors
  FROM vectors
    JOIN vector_dtypes USING (source, layer, tensor)
    JOIN rows USING (source, "row")
    JOIN sampling
      ON sampling.source = rows.source
      AND sampling.sampling_id = rows.sampling_id
  WHERE absmax_code IS NOT NULL
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND layer = coalesce(getvariable('layer')::INTEGER, layer)
    AND kv_head = coalesce(getvariable('kv_head')::INTEGER, kv_head)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY ALL
),
heads AS (
  SELECT tensor, layer, kv_head, max(absmax) AS amax,
    sum(num_vectors)::BIGINT AS num_vectors,
    sum(w_vectors) AS w_vectors
  FROM coded
  GROUP BY tensor, layer, kv_head
),
grid AS (
  SELECT tensor, layer, kv_head, num_vectors, w_vectors,
    -step AS step, amax * pow(2, -step / 4) AS covered_amax
  FROM heads, generate_series(
    0, coalesce(getvariable('steps')::INTEGER, 24)
  ) AS below(step)
)
SELECT tensor, layer, kv_head, step, covered_amax,
  coalesce(sum(coded.w_vectors) FILTER (absmax > covered_amax), 0)
    / any_value(grid.w_vectors) AS vectors_out_of_range_frac,
  any_value(grid.num_vectors) AS num_vectors
FROM grid JOIN coded USING (tensor, layer, kv_head)
GROUP BY tensor, layer, kv_head, step, covered_amax
ORDER BY tensor, layer, kv_head, step DESC;

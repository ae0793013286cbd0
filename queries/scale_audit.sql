-- Scales shipped, scales in effect, and the magnitudes the trace really has.
-- Grain: one row per (source, candidate, layer, tensor).
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/scale_audit.sql
--
-- Effective scales exist only where the engine wrote FP8. A covered_amax below
-- observed_amax means values out of range; up to 464/448 of it none is clipped
-- (e4m3fn).
--
-- Parameters
--   candidate  candidate; all  this one alone; else all artifacts and the
--                              effective scales
--   layer      layer; all      this layer alone
--   tensor     k or v; both    this tensor alone
--   source     trace; all      this trace alone
--
-- Columns
--   source                  the trace's name
--   candidate               the candidate's name
--   layer                   layer index
--   tensor                  k or v
--   min_scale               smallest over the KV heads; NULL: not quantized,
--                           or every vector gets its own (kind online)
--   max_scale               largest over the KV heads; NULL: the same
--   min_effective_scale     in the engine, smallest; NULL: no FP8 in effect
--   max_effective_scale     in the engine, largest; NULL: no FP8 in effect
--   num_heads               KV heads
--   num_heads_as_effective  heads whose scale is the engine's within 0.4 % (a
--                           bf16 copy); NULL: no FP8 in effect
--   observed_amax           largest finite magnitude in the trace
--   min_covered_amax        magnitude covered, smallest over the KV heads;
--                           NULL where min_scale is
--   min_headroom            smallest covered_amax / observed amax of a head
WITH observed AS (
  SELECT source, candidate, layer, kv_head, tensor, max(max_abs) AS amax
  FROM chosen_cells
  GROUP BY source, candidate, layer, kv_head, tensor
)
SELECT source, candidate, layer, tensor,
  min(scale) AS min_scale, max(scale) AS max_scale,
  min(effective_scale) AS min_effective_scale,
  max(effective_scale) AS max_effective_scale,
  count(*) AS num_heads,
  CASE WHEN count(effective_scale) > 0 THEN
    count(*) FILTER (is_same_scale(scale, effective_scale))
  END AS num_heads_as_effective,
  max(amax) AS observed_amax,
  min(covered_amax) AS min_covered_amax,
  min(share(covered_amax, amax)) AS min_headroom
FROM chosen_scales
  JOIN candidates USING (candidate)
  LEFT JOIN effective_scales USING (source, layer, kv_head, tensor)
  LEFT JOIN observed USING (source, candidate, layer, kv_head, tensor)
WHERE kind IN ('artifact', 'effective')
  OR candidate = getvariable('candidate')
GROUP BY ordinal, source, candidate, layer, tensor
ORDER BY source, ordinal, layer, tensor;

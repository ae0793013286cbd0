-- Clipping against flushing of every head, over a range of scales.
-- Grain: one row per (source, tensor, layer, kv_head, log2_multiple).
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -f .../queries/clip_against_flush.sql
--
-- A scale too small clips the widest values, one too large flushes the
-- smallest to 0; in between only rounding is left. Multiple 1 just covers the
-- head's widest value. Measured over the captured values, each counting once,
-- for one engine and format: those of the first candidate with static scales.
-- Empty where the replay made no counts (method direct, float32 layers).
--
-- Parameters
--   tensor   k or v alone; both
--   layer    this layer alone; all
--   kv_head  this KV head alone; all
--   source   this trace alone; all
--
-- Columns
--   source               the trace's name
--   tensor               k or v
--   layer                layer index
--   kv_head              global KV-head index
--   log2_multiple        k: the scale is 2^k times the one that just covers
--   scale                dequantization multiplier
--   covered_amax         largest magnitude in range, MAX × scale
--   clipped_frac         share of values clipped, 0 to 1
--   flushed_frac         share of values that become 0, 0 to 1
--   relative_error       Σ (x − x̂)² / Σ x²; lower is better
--   relative_clip_error  the part of it that clipped values have
--   num_values           finite values
SELECT source, tensor, layer, kv_head, log2_multiple, scale, covered_amax,
  num_clipped / nullif(num_values, 0) AS clipped_frac,
  num_flushed / nullif(num_values, 0) AS flushed_frac,
  sum_sq_error / nullif(sum_sq_signal, 0) AS relative_error,
  sum_sq_clip_error / nullif(sum_sq_signal, 0) AS relative_clip_error,
  num_values
FROM sweep
WHERE tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
  AND layer = coalesce(getvariable('layer')::INTEGER, layer)
  AND kv_head = coalesce(getvariable('kv_head')::INTEGER, kv_head)
  AND source = coalesce(getvariable('source')::VARCHAR, source)
ORDER BY source, tensor, layer, kv_head, log2_multiple;

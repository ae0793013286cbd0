-- Clipping against flushing of every head, over a range of scales.
-- Grain: one row per (source, tensor, layer, kv_head, log2_multiple).
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/clip_against_flush.sql
--
-- A scale too small clips the widest values, one too large flushes the
-- smallest to 0; in between only rounding is left. Multiple 1 just covers the
-- head's widest value. Measured over the captured values, each counting once,
-- for one engine and format: those of the first candidate with static scales.
-- Empty where the replay made no counts (method direct, float32 layers).
--
-- Parameters
--   tensor   k or v; both  this tensor alone
--   layer    layer; all    this layer alone
--   kv_head  KV head; all  this KV head alone
--   source   trace; all    this trace alone
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
  share(num_clipped, num_values) AS clipped_frac,
  share(num_flushed, num_values) AS flushed_frac,
  share(sum_sq_error, sum_sq_signal) AS relative_error,
  share(sum_sq_clip_error, sum_sq_signal) AS relative_clip_error,
  num_values
FROM sweep
WHERE is_head(tensor, layer, kv_head) AND is_source(source)
ORDER BY source, tensor, layer, kv_head, log2_multiple;

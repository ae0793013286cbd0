-- Which heads each request leaves the range in.
-- Grain: one row per (candidate, source, request, tensor, layer, kv_head) with
-- a vector out of range.
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/request_heads.sql
--
-- Parameters
--   candidate  candidate; all           this one alone
--   tensor     k or v; both             this tensor alone
--   source     trace; all               this trace alone
--
-- Columns
--   candidate                  the candidate's name
--   source                     the trace's name
--   request                    the request's number in its trace
--   tensor                     k or v
--   layer                      layer index
--   kv_head                    global KV-head index
--   vectors_out_of_range_frac  share of its vectors out of range, 0 to 1
--   vectors_clipped_frac       share of its vectors with a clipped value
SELECT candidate, source, request, tensor, layer, kv_head,
  share(out_of_range, n) AS vectors_out_of_range_frac,
  share(clipped, n) AS vectors_clipped_frac
FROM request_vectors(chosen_tokens)
WHERE is_quantized AND out_of_range > 0
ORDER BY candidate, source, request, tensor, layer, kv_head;

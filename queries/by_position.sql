-- Where along the request values leave the range, K and V apart.
-- Grain: one row per (candidate, tensor, phase, position_octave).
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/by_position.sql
--
-- Fractions weigh each row by what it was sampled from (view sampling); the
-- num_ columns are plain counts. Out of range but not clipped is harmless.
--
-- Parameters
--   candidate  candidate; all           this one alone
--   tensor     k or v; both             this tensor alone
--   layer      layer; all               this layer alone
--   kv_head    KV head; all             this KV head alone
--   workload   workload; all            this workload alone
--   phase      prefill or decode; both  this phase alone
--   source     trace; all               this trace alone
--
-- Columns
--   candidate                  the candidate's name
--   tensor                     k or v
--   phase                      prefill or decode
--   position_octave            n: positions 2^n to 2^(n+1) - 1; 0 as 1
--   position_from              first position of the octave
--   position_to                last position of the octave
--   out_of_range_frac          share of values out of range, 0 to 1
--   clipped_frac               share of values clipped, 0 to 1
--   vectors_out_of_range_frac  share of vectors out of range, 0 to 1
--   vectors_clipped_frac       share of vectors with a clipped value, 0 to 1
--   vectors_clipped_low        95 % interval of that over requests; NULL:
--                              fewer than 3 of them, too few to tell
--   vectors_clipped_high       its upper end; NULL: fewer than 5 requests
--   flushed_frac               share of values flushed to 0, 0 to 1
--   clip_error_frac            share of the squared error due to clipping
--   sqnr_db                    signal to quantization noise, dB, higher better
--   num_heads                  (layer, kv_head) pairs measured
--   num_heads_out_of_range     heads with a value out of range
--   num_heads_clipped          heads with a clipped value
--   worst_layer                layer of the head with the highest clipped_frac
--                              then out_of_range_frac; NULL: all in range
--   worst_kv_head              its KV head
--   worst_clipped_frac         its share of values clipped, 0 to 1
--   num_requests               requests with a captured row in the stratum
--   num_tokens                 captured rows in the stratum
--   num_values                 finite values
--   num_out_of_range           values
--   num_clipped                values
--   num_flushed                values
--   num_nonfinite              NaN and inf, in no other column
--   num_vectors                vectors with a finite value
--   num_vectors_out_of_range   vectors
--   num_vectors_clipped        vectors
WITH cell_strata AS (
  SELECT * REPLACE ({'phase': phase, 'octave': position_octave} AS stratum)
  FROM chosen_cells
),
token_strata AS (
  SELECT * REPLACE ({'phase': phase, 'octave': position_octave} AS stratum)
  FROM chosen_tokens
)
SELECT candidate, tensor, stratum.phase, stratum.octave AS position_octave,
  octave_from(stratum.octave) AS position_from,
  octave_to(stratum.octave) AS position_to,
  out_of_range_frac, clipped_frac, vectors_out_of_range_frac,
  vectors_clipped_frac, vectors_clipped_low, vectors_clipped_high,
  flushed_frac, clip_error_frac, sqnr_db,
  v.num_heads, v.num_heads_out_of_range, num_heads_clipped,
  v.worst_layer, v.worst_kv_head, worst_clipped_frac,
  num_requests, num_tokens,
  num_values, num_out_of_range, num_clipped, num_flushed, num_nonfinite,
  num_vectors, num_vectors_out_of_range, num_vectors_clipped
FROM value_totals(cell_strata) AS v
  JOIN quantizing USING (candidate)
  LEFT JOIN vector_totals(token_strata) USING (candidate, tensor, stratum)
  LEFT JOIN coverage(token_strata) USING (stratum)
  LEFT JOIN vector_intervals(token_strata) USING (candidate, tensor, stratum)
ORDER BY ordinal, tensor, stratum.phase DESC, position_octave;

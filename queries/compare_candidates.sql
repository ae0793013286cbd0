-- Candidates side by side, K and V apart, invalid ones with their reason.
-- Grain: one row per (candidate, tensor); one row for an invalid candidate.
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/compare_candidates.sql
--
-- Fractions weigh each row by what it was sampled from (view sampling); the
-- num_ columns are plain counts. Out of range but not clipped is harmless.
--
-- Parameters
--   candidate  candidate; all           this one alone
--   tensor     k or v; both             this tensor alone
--   workload   workload; all            this workload alone
--   phase      prefill or decode; both  this phase alone
--   source     trace; all               this trace alone
--   intervals  true or false            work out the intervals; true if a
--                                       candidate is named, else they are NULL
--
-- Columns
--   candidate                  the candidate's name
--   tensor                     k or v; NULL where invalid
--   kind                       bf16, effective, unit, artifact or online (see
--                              the view candidates)
--   status                     valid or invalid
--   reason                     why it is invalid; NULL where valid
--   hypothetical               true unless the captured engine wrote FP8 with
--                              these scales, in this way
--   engine                     numerics replayed; NULL for bf16
--   format                     FP8 format, or int8; NULL for bf16
--   granularity                tensor, attn_head or token_head as applied;
--                              NULL for bf16
--   out_of_range_frac          share of values out of range, 0 to 1
--   clipped_frac               share of values clipped, 0 to 1
--   vectors_out_of_range_frac  share of vectors out of range, 0 to 1
--   vectors_clipped_frac       share of vectors with a clipped value, 0 to 1
--   vectors_clipped_low        95 % interval of that over requests; NULL:
--                              fewer than 3 of them, too few to tell, or not
--                              asked for (see intervals)
--   vectors_clipped_high       its upper end; NULL: fewer than 5 requests, or
--                              not asked for
--   num_requests               requests that the interval counts
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
--   num_values                 finite values
--   num_out_of_range           values
--   num_clipped                values
--   num_flushed                values
--   num_nonfinite              NaN and inf, in no other column
--   num_vectors                vectors with a finite value
--   num_vectors_out_of_range   vectors
--   num_vectors_clipped        vectors
WITH intervals AS (
  SELECT *
  FROM vector_intervals(chosen_tokens)
  WHERE coalesce(
    getvariable('intervals')::BOOLEAN, getvariable('candidate') IS NOT NULL
  )
)
SELECT candidate, tensor, kind, status, reason, hypothetical, engine, format,
  granularity, out_of_range_frac, clipped_frac, vectors_out_of_range_frac,
  vectors_clipped_frac, vectors_clipped_low, vectors_clipped_high,
  num_counted_requests AS num_requests,
  flushed_frac, clip_error_frac, sqnr_db,
  v.num_heads, v.num_heads_out_of_range, num_heads_clipped,
  v.worst_layer, v.worst_kv_head, worst_clipped_frac,
  num_values, num_out_of_range, num_clipped, num_flushed, num_nonfinite,
  num_vectors, num_vectors_out_of_range, num_vectors_clipped
FROM candidates
  LEFT JOIN value_totals(chosen_cells) AS v USING (candidate)
  LEFT JOIN vector_totals(chosen_tokens) USING (candidate, tensor)
  LEFT JOIN intervals USING (candidate, tensor)
WHERE is_candidate(candidate)
ORDER BY ordinal, tensor;

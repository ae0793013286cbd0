-- From which position on vectors leave the range, as finely as asked.
-- Grain: one row per (candidate, tensor, phase, position_from).
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/by_exact_position.sql
--
-- Asked of vectors (one token's values of one head), the finest that a run
-- holds: a vector counts when its widest value is out of range, or clipped.
-- Shares weigh each row by what it was sampled from; num_ are plain counts.
--
-- Parameters
--   width      whole number from 1; 256  positions per line
--   candidate  candidate; all            this one alone
--   tensor     k or v; both              this tensor alone
--   layer      layer; all                this layer alone
--   kv_head    KV head; all              this KV head alone
--   workload   workload; all             this workload alone
--   source     trace; all                this trace alone
--
-- Columns
--   candidate                   the candidate's name
--   tensor                      k or v
--   phase                       prefill or decode
--   position_from               first position
--   position_to                 last position
--   vectors_out_of_range_frac   share of vectors out of range, 0 to 1
--   vectors_clipped_frac        share of vectors with a clipped value
--   vectors_clipped_low         95 % interval of that over requests; NULL:
--                               fewer than 3 of them, too few to tell
--   vectors_clipped_high        its upper end; NULL: fewer than 5 requests
--   num_requests                requests with a captured row here
--   num_incomplete_requests     of them, those not captured in full
--   num_tokens                  captured rows here
--   num_vectors                 vectors with a finite value
--   num_vectors_out_of_range    vectors
--   num_vectors_clipped         vectors
--   num_heads                   (layer, kv_head) pairs measured
--   num_heads_out_of_range      heads with a vector out of range
--   worst_layer                 layer of the head with the highest share of
--                               clipped, then of out-of-range vectors;
--                               NULL: all in range
--   worst_kv_head               its KV head
--   worst_vectors_clipped_frac  its share of vectors with a clipped value
WITH strata AS (
  SELECT * REPLACE ({
      'phase': phase,
      'position_from': position // coalesce(getvariable('width')::BIGINT, 256)
        * coalesce(getvariable('width')::BIGINT, 256)
    } AS stratum)
  FROM chosen_tokens
)
SELECT candidate, tensor, stratum.phase, stratum.position_from,
  stratum.position_from + coalesce(getvariable('width')::BIGINT, 256) - 1
    AS position_to,
  * EXCLUDE (ordinal, candidate, tensor, stratum)
FROM vector_strata(strata)
ORDER BY ordinal, tensor, stratum.phase DESC, stratum.position_from;

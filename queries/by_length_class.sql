-- In which class of prompt and output lengths vectors leave the range.
-- Grain: one row per (candidate, tensor, length, class).
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/by_length_class.sql
--
-- Asked of vectors (one token's values of one head), the finest that a run
-- holds: a vector counts when its widest value is out of range, or clipped.
-- Shares weigh each row by what it was sampled from; num_ are plain counts.
--
-- Parameters
--   prompt_edges  ascending whole numbers; quantiles  where classes of prompt
--                                                     lengths end; 512,4096:
--                                                     up to 512, up to 4,096
--                                                     and beyond; the
--                                                     quantiles are 0.25, 0.75
--                                                     and 0.95
--   output_edges  ascending whole numbers; quantiles  the same for output
--                                                     lengths
--   candidate     candidate; all                      this one alone
--   tensor        k or v; both                        this tensor alone
--   layer         layer; all                          this layer alone
--   kv_head       KV head; all                        this KV head alone
--   workload      workload; all                       this workload alone
--   source        trace; all                          this trace alone
--
-- Columns
--   candidate                   the candidate's name
--   tensor                      k or v
--   length                      prompt or output: what the class is of
--   class                       short (up to the 0.25 quantile), median (to
--                               0.75), p95 (to 0.95), longest (beyond); the
--                               range of tokens where edges were given
--   tokens_from                 shortest of the sampled requests in it, tokens
--   tokens_to                   longest of the sampled requests in it, tokens
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
  SELECT tokens.* REPLACE ({
      'length': length, 'number': class_number, 'tokens_from': tokens_from,
      'tokens_to': tokens_to
    } AS stratum)
  FROM chosen_tokens AS tokens JOIN length_classes USING (source, request)
)
SELECT candidate, tensor, stratum.length,
  CASE
    WHEN stratum.length = 'prompt' AND getvariable('prompt_edges') IS NULL
      OR stratum.length = 'output' AND getvariable('output_edges') IS NULL
    THEN ['short', 'median', 'p95', 'longest'][stratum.number + 1]
    ELSE stratum.tokens_from || '–' || stratum.tokens_to
  END AS class,
  stratum.tokens_from, stratum.tokens_to,
  * EXCLUDE (ordinal, candidate, tensor, stratum)
FROM vector_strata(strata)
ORDER BY ordinal, tensor, stratum.length DESC, stratum.number;

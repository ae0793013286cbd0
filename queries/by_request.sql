-- Which requests leave the range, most first, K and V apart.
-- Grain: one row per (candidate, tensor, source, request).
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/by_request.sql
--
-- Asked of vectors (one token's values of one head), the finest that a run
-- holds: a vector counts when its widest value is out of range, or clipped.
-- Shares weigh each row by what it was sampled from; num_ are plain counts.
--
-- Parameters
--   top        whole number from 1; 10  requests shown per candidate and
--                                       tensor
--   candidate  candidate; all           this one alone
--   tensor     k or v; both             this tensor alone
--   layer      layer; all               this layer alone
--   kv_head    KV head; all             this KV head alone
--   workload   workload; all            this workload alone
--   source     trace; all               this trace alone
--
-- Columns
--   candidate                   the candidate's name
--   tensor                      k or v
--   source                      the trace's name
--   request                     the request's number in its trace
--   workload                    the client's label, or unlabelled
--   prompt_tokens               tokens
--   output_tokens               tokens generated
--   vectors_out_of_range_frac   share of vectors out of range, 0 to 1
--   vectors_clipped_frac        share of vectors with a clipped value
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
      'source': source, 'request': request, 'workload': workload,
      'prompt_tokens': prompt_tokens, 'output_tokens': output_tokens
    } AS stratum)
  FROM chosen_tokens
)
SELECT candidate, tensor, unnest(stratum), vectors_out_of_range_frac,
  vectors_clipped_frac, num_requests, num_incomplete_requests, num_tokens,
  num_vectors, num_vectors_out_of_range, num_vectors_clipped, num_heads,
  num_heads_out_of_range, worst_layer, worst_kv_head,
  worst_vectors_clipped_frac
FROM vector_totals(strata)
  JOIN quantizing USING (candidate)
  JOIN coverage(strata) USING (stratum)
QUALIFY row_number() OVER (
    PARTITION BY candidate, tensor
    ORDER BY vectors_clipped_frac DESC, vectors_out_of_range_frac DESC,
      stratum.source, stratum.request
  ) <= coalesce(getvariable('top')::INTEGER, 10)
ORDER BY ordinal, tensor, vectors_clipped_frac DESC,
  vectors_out_of_range_frac DESC, stratum.source, stratum.request;

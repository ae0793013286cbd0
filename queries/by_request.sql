-- Which requests leave the range, worst first, K and V apart.
-- Grain: one row per (candidate, tensor, source, request).
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -f .../queries/by_request.sql
--
-- Asked of vectors (one token's values of one head), the finest that a run
-- holds: a vector counts when its widest value is out of range, or clipped.
-- Shares weigh each row by what it was sampled from; num_ are plain counts.
--
-- Parameters
--   top        requests shown per candidate and tensor; 10
--   candidate  this candidate alone; all
--   tensor     k or v alone; both
--   layer      this layer alone; all
--   kv_head    this KV head alone; all
--   workload   this workload alone; all
--   source     this trace alone; all
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
  SELECT source, "row", request, weight, incomplete,
    workload, prompt_tokens, output_tokens
  FROM tokens
  WHERE workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
),
coverage AS (
  SELECT source, request, workload, prompt_tokens, output_tokens,
    count(DISTINCT (source, request)) AS num_requests,
    count(DISTINCT (source, request)) FILTER (incomplete)
      AS num_incomplete_requests,
    count(*) AS num_tokens
  FROM strata
  GROUP BY source, request, workload, prompt_tokens, output_tokens
),
codes AS (
  SELECT source, layer, kv_head, tensor, request, workload,
    prompt_tokens, output_tokens,
    greatest(absmax_code, max_code) AS absmax_code,
    count(*) AS num_vectors, sum(weight) AS w_vectors
  FROM vectors
    JOIN strata USING (source, "row")
    JOIN in_range_codes USING (source, layer, kv_head, tensor)
  WHERE absmax_code IS NOT NULL
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND layer = coalesce(getvariable('layer')::INTEGER, layer)
    AND kv_head = coalesce(getvariable('kv_head')::INTEGER, kv_head)
  GROUP BY ALL
),
by_head AS (
  SELECT candidate, tensor, layer, kv_head, source, request, workload,
    prompt_tokens, output_tokens,
    sum(num_vectors) AS num_vectors,
    coalesce(sum(num_vectors) FILTER (absmax_code > max_in_range_code), 0)
      AS num_out_of_range,
    coalesce(sum(num_vectors) FILTER (absmax_code > max_unclipped_code), 0)
      AS num_clipped,
    sum(w_vectors) AS w_vectors,
    coalesce(sum(w_vectors) FILTER (absmax_code > max_in_range_code), 0)
      AS w_out_of_range,
    coalesce(sum(w_vectors) FILTER (absmax_code > max_unclipped_code), 0)
      AS w_clipped
  FROM scales JOIN codes USING (source, layer, kv_head, tensor)
  WHERE candidate = coalesce(getvariable('candidate')::VARCHAR, candidate)
  GROUP BY ALL
),
sums AS (
  SELECT candidate, tensor, source, request, workload, prompt_tokens,
    output_tokens,
    sum(num_vectors)::BIGINT AS num_vectors,
    sum(num_out_of_range)::BIGINT AS num_vectors_out_of_range,
    sum(num_clipped)::BIGINT AS num_vectors_clipped,
    sum(w_out_of_range) / nullif(sum(w_vectors), 0)
      AS vectors_out_of_range_frac,
    sum(w_clipped) / nullif(sum(w_vectors), 0) AS vectors_clipped_frac,
    count(*) AS num_heads,
    count(*) FILTER (num_out_of_range > 0) AS num_heads_out_of_range,
    min({
      'clipped': -w_clipped / w_vectors,
      'out_of_range': -w_out_of_range / w_vectors,
      'layer': layer, 'kv_head': kv_head
    }) FILTER (num_out_of_range > 0) AS worst
  FROM by_head
  GROUP BY candidate, tensor, source, request, workload, prompt_tokens,
    output_tokens
)
SELECT candidate, tensor, source, request, workload, prompt_tokens,
  output_tokens,
  vectors_out_of_range_frac, vectors_clipped_frac, num_requests,
  num_incomplete_requests, num_tokens, num_vectors,
  num_vectors_out_of_range, num_vectors_clipped, num_heads,
  num_heads_out_of_range, worst.layer AS worst_layer,
  worst.kv_head AS worst_kv_head,
  abs(worst.clipped) AS worst_vectors_clipped_frac
FROM sums
  JOIN coverage USING (source, request, workload, prompt_tokens, output_tokens)
  JOIN candidates USING (candidate)
WHERE kind <> 'bf16'
QUALIFY row_number() OVER (
    PARTITION BY candidate, tensor
    ORDER BY vectors_clipped_frac DESC, vectors_out_of_range_frac DESC,
      source, request
  ) <= coalesce(getvariable('top')::INTEGER, 10)
ORDER BY ordinal, tensor, vectors_clipped_frac DESC,
  vectors_out_of_range_frac DESC, source, request;

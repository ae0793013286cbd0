-- From which position on vectors leave the range, as finely as asked.
-- Grain: one row per (candidate, tensor, phase, position_from).
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -f .../queries/by_exact_position.sql
--
-- Asked of vectors (one token's values of one head), the finest that a run
-- holds: a vector counts when its widest value is out of range, or clipped.
-- Shares weigh each row by what it was sampled from; num_ are plain counts.
--
-- Parameters
--   width      positions per line; 256
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
  SELECT source, "row", request, weight, incomplete,
    phase,
    position // coalesce(getvariable('width')::BIGINT, 256)
      * coalesce(getvariable('width')::BIGINT, 256) AS position_from
  FROM tokens
  WHERE workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
),
coverage AS (
  SELECT phase, position_from,
    count(DISTINCT (source, request)) AS num_requests,
    count(DISTINCT (source, request)) FILTER (incomplete)
      AS num_incomplete_requests,
    count(*) AS num_tokens
  FROM strata
  GROUP BY phase, position_from
),
codes AS (
  SELECT source, layer, kv_head, tensor, phase, position_from,
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
  SELECT candidate, tensor, layer, kv_head, phase, position_from,
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
  SELECT candidate, tensor, phase, position_from,
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
  GROUP BY candidate, tensor, phase, position_from
),
-- Vectors of every request, and those that are clipped, for the interval.
trials AS (
  SELECT source, tensor, phase, position_from, request, sum(weight) AS n
  FROM vectors JOIN strata USING (source, "row")
  WHERE absmax_code IS NOT NULL
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND layer = coalesce(getvariable('layer')::INTEGER, layer)
    AND kv_head = coalesce(getvariable('kv_head')::INTEGER, kv_head)
  GROUP BY ALL
),
events AS (
  SELECT candidate, source, tensor, phase, position_from, request,
    sum(weight) AS x
  FROM clipped_vectors JOIN strata USING (source, "row")
  WHERE candidate = coalesce(getvariable('candidate')::VARCHAR, candidate)
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND layer = coalesce(getvariable('layer')::INTEGER, layer)
    AND kv_head = coalesce(getvariable('kv_head')::INTEGER, kv_head)
  GROUP BY ALL
),
intervals AS (
  SELECT candidate, tensor, phase, position_from,
    request_sums(coalesce(x, 0), n) AS clipped
  FROM trials
    JOIN candidate_sources USING (source)
    LEFT JOIN events
      USING (candidate, source, tensor, phase, position_from, request)
  GROUP BY candidate, tensor, phase, position_from
)
SELECT candidate, tensor, phase, position_from,
  position_from + coalesce(getvariable('width')::BIGINT, 256) - 1
    AS position_to,
  vectors_out_of_range_frac, vectors_clipped_frac,
  fraction_low(clipped) AS vectors_clipped_low,
  fraction_high(clipped) AS vectors_clipped_high, num_requests,
  num_incomplete_requests, num_tokens, num_vectors,
  num_vectors_out_of_range, num_vectors_clipped, num_heads,
  num_heads_out_of_range, worst.layer AS worst_layer,
  worst.kv_head AS worst_kv_head,
  abs(worst.clipped) AS worst_vectors_clipped_frac
FROM sums
  JOIN coverage USING (phase, position_from)
  JOIN candidates USING (candidate)
  LEFT JOIN intervals USING (candidate, tensor, phase, position_from)
WHERE kind <> 'bf16'
ORDER BY ordinal, tensor, phase DESC, position_from;

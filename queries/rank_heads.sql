-- Heads that leave the FP8 range, worst first, K and V apart.
-- Grain: one row per (candidate, tensor, layer, kv_head).
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -f .../queries/rank_heads.sql
--
-- Fractions weigh each row by what it was sampled from (view sampling); the
-- num_ columns are plain counts. A token's vector counts as out of range when
-- its widest value is. Out of range but not clipped is harmless: the value
-- rounds to MAX. Candidates that quantize nothing (bf16) are left out.
--
-- Parameters
--   top        heads shown per candidate, tensor and ranking; 10
--   candidate  this candidate alone; all
--   tensor     k or v alone; both
--   source     this trace alone; all
--   intervals  true or false: work out the intervals; true if a candidate is
--              named, else they are NULL
--
-- Columns
--   candidate                  the candidate's name
--   tensor                     k or v
--   rank                       1 = largest out_of_range_frac
--   vector_rank                1 = largest vectors_out_of_range_frac
--   layer                      layer index
--   kv_head                    global KV-head index
--   out_of_range_frac          share of values out of range, 0 to 1
--   clipped_frac               share of values clipped, 0 to 1
--   vectors_out_of_range_frac  share of vectors out of range, 0 to 1
--   vectors_clipped_frac       share of vectors with a clipped value, 0 to 1
--   vectors_clipped_low        95 % interval of that over requests; NULL:
--                              fewer than 3 of them, too few to tell, or not
--                              asked for (see intervals)
--   vectors_clipped_high       its upper end; NULL: fewer than 5 requests, or
--                              not asked for
--   flushed_frac               share of values flushed to 0, 0 to 1
--   clip_error_frac            share of the squared error due to clipping
--   sqnr_db                    signal to quantization noise, dB, higher better
--   num_values                 finite values
--   num_out_of_range           values
--   num_clipped                values
--   num_flushed                values
--   num_nonfinite              NaN and inf, in no other column
--   num_vectors                vectors with a finite value
--   num_vectors_out_of_range   vectors
--   num_vectors_clipped        vectors
--   max_abs                    largest finite magnitude
--   covered_amax               magnitude covered, the smallest over sources;
--                              NULL: no scale of its own (kind online)
WITH by_rule AS (
  SELECT source, candidate, layer, kv_head, tensor, sampling_id,
    sum(num_values) AS num_values,
    sum(num_out_of_range) AS num_out_of_range,
    sum(num_clipped) AS num_clipped,
    sum(num_flushed) AS num_flushed,
    sum(num_nonfinite) AS num_nonfinite,
    sum(sum_sq_signal) AS sum_sq_signal,
    sum(sum_sq_error) AS sum_sq_error,
    sum(sum_sq_clip_error) AS sum_sq_clip_error,
    max(max_abs) AS max_abs
  FROM cells
  WHERE candidate
      = coalesce(getvariable('candidate')::VARCHAR, candidate)
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY source, candidate, layer, kv_head, tensor, sampling_id
),
value_sums AS (
  SELECT candidate, layer, kv_head, tensor,
    sum(num_values)::BIGINT AS num_values,
    sum(num_out_of_range)::BIGINT AS num_out_of_range,
    sum(num_clipped)::BIGINT AS num_clipped,
    sum(num_flushed)::BIGINT AS num_flushed,
    sum(num_nonfinite)::BIGINT AS num_nonfinite,
    max(max_abs) AS max_abs,
    sum(weight * num_values) AS w_values,
    sum(weight * num_out_of_range) AS w_out_of_range,
    sum(weight * num_clipped) AS w_clipped,
    sum(weight * num_flushed) AS w_flushed,
    sum(weight * sum_sq_signal) AS w_sq_signal,
    sum(weight * sum_sq_error) AS w_sq_error,
    sum(weight * sum_sq_clip_error) AS w_sq_clip_error
  FROM by_rule JOIN sampling USING (source, sampling_id)
  GROUP BY candidate, layer, kv_head, tensor
),
-- Vectors by code, so that a candidate compares a few hundred codes a head and
-- not every row. Codes that all candidates cover count as the largest of them.
in_range AS (
  SELECT source, layer, kv_head, tensor,
    min(max_in_range_code) AS max_code
  FROM scales
  WHERE candidate = coalesce(getvariable('candidate')::VARCHAR, candidate)
  GROUP BY source, layer, kv_head, tensor
),
codes AS (
  SELECT source, layer, kv_head, tensor,
    greatest(absmax_code, max_code) AS absmax_code,
    count(*) AS num_vectors, sum(weight) AS w_vectors
  FROM vectors
    JOIN rows USING (source, "row")
    JOIN sampling USING (source, sampling_id)
    JOIN in_range USING (source, layer, kv_head, tensor)
  WHERE absmax_code IS NOT NULL
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY ALL
),
vector_sums AS (
  SELECT candidate, layer, kv_head, tensor,
    min(covered_amax) AS covered_amax,
    sum(num_vectors)::BIGINT AS num_vectors,
    coalesce(sum(num_vectors) FILTER (absmax_code > max_in_range_code), 0)
      ::BIGINT AS num_vectors_out_of_range,
    coalesce(sum(num_vectors) FILTER (absmax_code > max_unclipped_code), 0)
      ::BIGINT AS num_vectors_clipped,
    sum(w_vectors) AS w_vectors,
    coalesce(sum(w_vectors) FILTER (absmax_code > max_in_range_code), 0)
      AS w_vectors_out_of_range,
    coalesce(sum(w_vectors) FILTER (absmax_code > max_unclipped_code), 0)
      AS w_vectors_clipped
  FROM scales JOIN codes USING (source, layer, kv_head, tensor)
  WHERE candidate
      = coalesce(getvariable('candidate')::VARCHAR, candidate)
  GROUP BY candidate, layer, kv_head, tensor
),
heads AS (
  SELECT ordinal, candidate, tensor, layer, kv_head,
    w_out_of_range / nullif(w_values, 0) AS out_of_range_frac,
    w_clipped / nullif(w_values, 0) AS clipped_frac,
    w_vectors_out_of_range / nullif(w_vectors, 0)
      AS vectors_out_of_range_frac,
    w_vectors_clipped / nullif(w_vectors, 0) AS vectors_clipped_frac,
    w_flushed / nullif(w_values, 0) AS flushed_frac,
    w_sq_clip_error / nullif(w_sq_error, 0) AS clip_error_frac,
    sqnr_db(w_sq_signal, w_sq_error) AS sqnr_db,
    num_values, num_out_of_range, num_clipped, num_flushed, num_nonfinite,
    num_vectors, num_vectors_out_of_range, num_vectors_clipped,
    max_abs, covered_amax
  FROM value_sums
    JOIN candidates USING (candidate)
    LEFT JOIN vector_sums USING (candidate, layer, kv_head, tensor)
  WHERE kind <> 'bf16'
),
ranked AS (
  SELECT *,
    row_number() OVER (
      PARTITION BY candidate, tensor
      ORDER BY out_of_range_frac DESC NULLS LAST,
        clipped_frac DESC NULLS LAST, layer, kv_head
    ) AS rank,
    row_number() OVER (
      PARTITION BY candidate, tensor
      ORDER BY vectors_out_of_range_frac DESC NULLS LAST,
        vectors_clipped_frac DESC NULLS LAST, layer, kv_head
    ) AS vector_rank
  FROM heads
),
shown AS MATERIALIZED (
  SELECT *
  FROM ranked
  WHERE least(rank, vector_rank)
    <= coalesce(getvariable('top')::INTEGER, 10)
),
in_doubt AS (
  SELECT candidate, tensor, layer, kv_head
  FROM shown
  WHERE coalesce(
    getvariable('intervals')::BOOLEAN, getvariable('candidate') IS NOT NULL
  )
),
-- Vectors of every request, and those that are clipped, for the interval.
trials AS (
  SELECT source, tensor, layer, kv_head, request, sum(weight) AS n
  FROM vectors
    SEMI JOIN in_doubt USING (tensor, layer, kv_head)
    JOIN tokens USING (source, "row")
  WHERE absmax_code IS NOT NULL
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY ALL
),
events AS (
  SELECT candidate, source, tensor, layer, kv_head, request, sum(weight) AS x
  FROM vectors
    SEMI JOIN in_doubt USING (tensor, layer, kv_head)
    JOIN scales USING (source, tensor, layer, kv_head)
    JOIN tokens USING (source, "row")
  WHERE absmax_code > max_unclipped_code
  GROUP BY ALL
),
intervals AS (
  SELECT candidate, tensor, layer, kv_head,
    request_sums(coalesce(x, 0), n) AS clipped
  FROM in_doubt
    JOIN trials USING (tensor, layer, kv_head)
    JOIN candidate_sources USING (source, candidate)
    LEFT JOIN events
      USING (candidate, source, tensor, layer, kv_head, request)
  GROUP BY candidate, tensor, layer, kv_head
)
SELECT candidate, tensor, rank, vector_rank, layer, kv_head,
  out_of_range_frac, clipped_frac, vectors_out_of_range_frac,
  vectors_clipped_frac,
  fraction_low(clipped) AS vectors_clipped_low,
  fraction_high(clipped) AS vectors_clipped_high,
  flushed_frac, clip_error_frac, sqnr_db,
  num_values, num_out_of_range, num_clipped, num_flushed, num_nonfinite,
  num_vectors, num_vectors_out_of_range, num_vectors_clipped,
  max_abs, covered_amax
FROM shown LEFT JOIN intervals USING (candidate, tensor, layer, kv_head)
ORDER BY ordinal, tensor, rank, layer, kv_head;

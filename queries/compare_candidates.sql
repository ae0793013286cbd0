-- Candidates side by side, K and V apart, invalid ones with their reason.
-- Grain: one row per (candidate, tensor); one row for an invalid candidate.
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -f .../queries/compare_candidates.sql
--
-- Fractions weigh each row by what it was sampled from (view sampling); the
-- num_ columns are plain counts. Out of range but not clipped is harmless.
--
-- Parameters
--   candidate  this candidate alone; all
--   tensor     k or v alone; both
--   workload   this workload alone; all
--   phase      prefill or decode alone; both
--   source     this trace alone; all
--   intervals  true or false: work out the intervals; true if a candidate
--              is named, else they are NULL
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
WITH by_head AS (
  SELECT candidate, tensor, layer, kv_head,
    sum(num_values)::BIGINT AS num_values,
    sum(num_out_of_range)::BIGINT AS num_out_of_range,
    sum(num_clipped)::BIGINT AS num_clipped,
    sum(num_flushed)::BIGINT AS num_flushed,
    sum(num_nonfinite)::BIGINT AS num_nonfinite,
    sum(weight * num_values) AS w_values,
    sum(weight * num_out_of_range) AS w_out_of_range,
    sum(weight * num_clipped) AS w_clipped,
    sum(weight * num_flushed) AS w_flushed,
    sum(weight * sum_sq_signal) AS w_sq_signal,
    sum(weight * sum_sq_error) AS w_sq_error,
    sum(weight * sum_sq_clip_error) AS w_sq_clip_error
  FROM cells JOIN sampling USING (source, sampling_id)
  WHERE candidate = coalesce(getvariable('candidate')::VARCHAR, candidate)
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND phase = coalesce(getvariable('phase')::VARCHAR, phase)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY candidate, tensor, layer, kv_head
),
value_sums AS (
  SELECT candidate, tensor,
    count(*) AS num_heads,
    count(*) FILTER (num_out_of_range > 0) AS num_heads_out_of_range,
    count(*) FILTER (num_clipped > 0) AS num_heads_clipped,
    min({
      'clipped': -w_clipped / w_values,
      'out_of_range': -w_out_of_range / w_values,
      'layer': layer, 'kv_head': kv_head
    }) FILTER (num_out_of_range > 0) AS worst,
    sum(num_values)::BIGINT AS num_values,
    sum(num_out_of_range)::BIGINT AS num_out_of_range,
    sum(num_clipped)::BIGINT AS num_clipped,
    sum(num_flushed)::BIGINT AS num_flushed,
    sum(num_nonfinite)::BIGINT AS num_nonfinite,
    sum(w_values) AS w_values,
    sum(w_out_of_range) AS w_out_of_range,
    sum(w_clipped) AS w_clipped,
    sum(w_flushed) AS w_flushed,
    sum(w_sq_signal) AS w_sq_signal,
    sum(w_sq_error) AS w_sq_error,
    sum(w_sq_clip_error) AS w_sq_clip_error
  FROM by_head
  GROUP BY candidate, tensor
),
codes AS (
  SELECT source, layer, kv_head, tensor, absmax_code,
    sum(num_vectors) AS num_vectors,
    sum(weight * num_vectors) AS w_vectors
  FROM vector_codes JOIN sampling USING (source, sampling_id)
  WHERE tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND phase = coalesce(getvariable('phase')::VARCHAR, phase)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY ALL
),
vector_sums AS (
  SELECT candidate, tensor,
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
  WHERE candidate = coalesce(getvariable('candidate')::VARCHAR, candidate)
  GROUP BY candidate, tensor
),
-- Vectors of every request, and those that are clipped, for the interval.
trials AS (
  SELECT source, tensor, request, sum(weight) AS n
  FROM vectors JOIN tokens USING (source, "row")
  WHERE absmax_code IS NOT NULL
    AND coalesce(
      getvariable('intervals')::BOOLEAN, getvariable('candidate') IS NOT NULL
    )
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND phase = coalesce(getvariable('phase')::VARCHAR, phase)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY ALL
),
events AS (
  SELECT candidate, source, tensor, request, sum(weight) AS x
  FROM clipped_vectors JOIN tokens USING (source, "row")
  WHERE candidate = coalesce(getvariable('candidate')::VARCHAR, candidate)
    AND coalesce(
      getvariable('intervals')::BOOLEAN, getvariable('candidate') IS NOT NULL
    )
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND phase = coalesce(getvariable('phase')::VARCHAR, phase)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY ALL
),
intervals AS (
  SELECT candidate, tensor, count(*) AS num_requests,
    request_sums(coalesce(x, 0), n) AS clipped
  FROM trials
    JOIN candidate_sources USING (source)
    LEFT JOIN events USING (candidate, source, tensor, request)
  GROUP BY candidate, tensor
)
SELECT candidate, tensor, kind, status, reason, hypothetical, engine, format,
  granularity,
  w_out_of_range / nullif(w_values, 0) AS out_of_range_frac,
  w_clipped / nullif(w_values, 0) AS clipped_frac,
  w_vectors_out_of_range / nullif(w_vectors, 0)
    AS vectors_out_of_range_frac,
  w_vectors_clipped / nullif(w_vectors, 0) AS vectors_clipped_frac,
  fraction_low(clipped) AS vectors_clipped_low,
  fraction_high(clipped) AS vectors_clipped_high,
  num_requests,
  w_flushed / nullif(w_values, 0) AS flushed_frac,
  w_sq_clip_error / nullif(w_sq_error, 0) AS clip_error_frac,
  sqnr_db(w_sq_signal, w_sq_error) AS sqnr_db,
  num_heads, num_heads_out_of_range, num_heads_clipped,
  worst.layer AS worst_layer, worst.kv_head AS worst_kv_head,
  abs(worst.clipped) AS worst_clipped_frac,
  num_values, num_out_of_range, num_clipped, num_flushed, num_nonfinite,
  num_vectors, num_vectors_out_of_range, num_vectors_clipped
FROM candidates
  LEFT JOIN value_sums USING (candidate)
  LEFT JOIN vector_sums USING (candidate, tensor)
  LEFT JOIN intervals USING (candidate, tensor)
WHERE candidate = coalesce(getvariable('candidate')::VARCHAR, candidate)
ORDER BY ordinal, tensor;

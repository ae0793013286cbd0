-- In which class of requests values leave the range, K and V apart.
-- Grain: one row per (candidate, tensor, workload).
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -f .../queries/by_workload.sql
--
-- Fractions weigh each row by what it was sampled from (view sampling); the
-- num_ columns are plain counts. Out of range but not clipped is harmless.
--
-- Parameters
--   candidate  this candidate alone; all
--   tensor     k or v alone; both
--   layer      this layer alone; all
--   kv_head    this KV head alone; all
--   workload   this workload alone; all
--   phase      prefill or decode alone; both
--   source     this trace alone; all
--
-- Columns
--   candidate                  the candidate's name
--   tensor                     k or v
--   workload                   the client's label, or unlabelled
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
--   clipped_low                95 % interval of clipped_frac over requests;
--                              NULL: too few request groups, or a run
--                              without them (kvtrace replay --intervals);
--                              always for kind online
--   clipped_high               its upper end; so are the next ones
--   clip_error_low             of clip_error_frac
--   clip_error_high            of clip_error_frac
--   sqnr_low_db                of sqnr_db
--   sqnr_high_db               of sqnr_db
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
WITH by_head AS (
  SELECT candidate, tensor, layer, kv_head, workload,
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
    AND layer = coalesce(getvariable('layer')::INTEGER, layer)
    AND kv_head = coalesce(getvariable('kv_head')::INTEGER, kv_head)
    AND workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND phase = coalesce(getvariable('phase')::VARCHAR, phase)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY candidate, tensor, layer, kv_head, workload
),
value_sums AS (
  SELECT candidate, tensor, workload,
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
  GROUP BY candidate, tensor, workload
),
codes AS (
  SELECT source, layer, kv_head, tensor, workload, absmax_code,
    sum(num_vectors) AS num_vectors,
    sum(weight * num_vectors) AS w_vectors
  FROM vector_codes JOIN sampling USING (source, sampling_id)
  WHERE tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND layer = coalesce(getvariable('layer')::INTEGER, layer)
    AND kv_head = coalesce(getvariable('kv_head')::INTEGER, kv_head)
    AND workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND phase = coalesce(getvariable('phase')::VARCHAR, phase)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY ALL
),
vector_sums AS (
  SELECT candidate, tensor, workload,
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
  GROUP BY candidate, tensor, workload
),
coverage AS (
  SELECT workload,
    count(DISTINCT (source, request)) AS num_requests,
    count(*) AS num_tokens
  FROM rows JOIN requests USING (source, request)
  WHERE phase = coalesce(getvariable('phase')::VARCHAR, phase)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY workload
),
-- Vectors of every request, and those that are clipped, for the interval.
trials AS (
  SELECT source, tensor, workload, request, sum(weight) AS n
  FROM vectors JOIN tokens USING (source, "row")
  WHERE absmax_code IS NOT NULL
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND layer = coalesce(getvariable('layer')::INTEGER, layer)
    AND kv_head = coalesce(getvariable('kv_head')::INTEGER, kv_head)
    AND workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND phase = coalesce(getvariable('phase')::VARCHAR, phase)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY ALL
),
events AS (
  SELECT candidate, source, tensor, workload, request, sum(weight) AS x
  FROM clipped_vectors JOIN tokens USING (source, "row")
  WHERE candidate = coalesce(getvariable('candidate')::VARCHAR, candidate)
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND layer = coalesce(getvariable('layer')::INTEGER, layer)
    AND kv_head = coalesce(getvariable('kv_head')::INTEGER, kv_head)
    AND workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND phase = coalesce(getvariable('phase')::VARCHAR, phase)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY ALL
),
intervals AS (
  SELECT candidate, tensor, workload,
    request_sums(coalesce(x, 0), n) AS clipped
  FROM trials
    JOIN candidate_sources USING (source)
    LEFT JOIN events
      USING (candidate, source, tensor, workload, request)
  GROUP BY candidate, tensor, workload
),
-- The same sums by request group, for the intervals of ratios.
grouped AS (
  SELECT candidate, tensor, workload, request_group,
    sum(weight * num_values) AS w_values,
    sum(weight * num_clipped) AS w_clipped,
    sum(weight * sum_sq_signal) AS w_sq_signal,
    sum(weight * sum_sq_error) AS w_sq_error,
    sum(weight * sum_sq_clip_error) AS w_sq_clip_error
  FROM groups JOIN sampling USING (source, sampling_id)
  WHERE candidate = coalesce(getvariable('candidate')::VARCHAR, candidate)
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND layer = coalesce(getvariable('layer')::INTEGER, layer)
    AND kv_head = coalesce(getvariable('kv_head')::INTEGER, kv_head)
    AND workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND phase = coalesce(getvariable('phase')::VARCHAR, phase)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY ALL
),
group_lists AS (
  SELECT candidate, tensor, workload,
    list(w_values ORDER BY request_group) AS g_values,
    list(w_clipped ORDER BY request_group) AS g_clipped,
    list(w_sq_signal ORDER BY request_group) AS g_sq_signal,
    list(w_sq_error ORDER BY request_group) AS g_sq_error,
    list(w_sq_clip_error ORDER BY request_group) AS g_sq_clip_error
  FROM grouped
  GROUP BY candidate, tensor, workload
)
SELECT candidate, tensor, workload,
  w_out_of_range / nullif(w_values, 0) AS out_of_range_frac,
  w_clipped / nullif(w_values, 0) AS clipped_frac,
  w_vectors_out_of_range / nullif(w_vectors, 0)
    AS vectors_out_of_range_frac,
  w_vectors_clipped / nullif(w_vectors, 0) AS vectors_clipped_frac,
  fraction_low(clipped) AS vectors_clipped_low,
  fraction_high(clipped) AS vectors_clipped_high,
  w_flushed / nullif(w_values, 0) AS flushed_frac,
  w_sq_clip_error / nullif(w_sq_error, 0) AS clip_error_frac,
  sqnr_db(w_sq_signal, w_sq_error) AS sqnr_db,
  ratio_low(g_clipped, g_values) AS clipped_low,
  ratio_high(g_clipped, g_values) AS clipped_high,
  ratio_low(g_sq_clip_error, g_sq_error) AS clip_error_low,
  ratio_high(g_sq_clip_error, g_sq_error) AS clip_error_high,
  sqnr_db(ratio_low(g_sq_signal, g_sq_error), 1) AS sqnr_low_db,
  sqnr_db(ratio_high(g_sq_signal, g_sq_error), 1) AS sqnr_high_db,
  num_heads, num_heads_out_of_range, num_heads_clipped,
  worst.layer AS worst_layer, worst.kv_head AS worst_kv_head,
  abs(worst.clipped) AS worst_clipped_frac,
  num_requests, num_tokens,
  num_values, num_out_of_range, num_clipped, num_flushed, num_nonfinite,
  num_vectors, num_vectors_out_of_range, num_vectors_clipped
FROM value_sums
  JOIN candidates USING (candidate)
  LEFT JOIN vector_sums USING (candidate, tensor, workload)
  LEFT JOIN coverage USING (workload)
  LEFT JOIN intervals USING (candidate, tensor, workload)
  LEFT JOIN group_lists USING (candidate, tensor, workload)
WHERE kind <> 'bf16'
ORDER BY ordinal, tensor, workload;

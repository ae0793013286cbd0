-- What queries ask: rows that the parameters choose, and sums over them.
-- Grain: see each view and macro.
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -cmd ".read .../queries/intervals.sql" \
--   -cmd ".read .../queries/measures.sql"
--
-- A parameter is a variable; one that is not set chooses everything:
--   SET VARIABLE tensor = 'k';
-- A measure takes a relation by name, one of the chosen_ views or what a query
-- makes of it, and sums it by its column stratum:
--   WITH strata AS (
--     SELECT * REPLACE (workload AS stratum) FROM chosen_cells
--   )
--   SELECT stratum, clipped_frac FROM value_totals(strata);
-- As they are, the chosen_ views are one stratum, the whole. Sums that w_
-- precedes weigh each row by what it was sampled from; num_ are plain counts.

-- Whether a value is the one asked for; anything is where none is.
CREATE OR REPLACE MACRO is_asked(asked, value) AS
  asked IS NULL OR value = asked;
CREATE OR REPLACE MACRO is_candidate(candidate) AS
  is_asked(getvariable('candidate'), candidate);
CREATE OR REPLACE MACRO is_head(tensor, layer, kv_head) AS
  is_asked(getvariable('tensor'), tensor)
  AND is_asked(getvariable('layer')::INTEGER, layer)
  AND is_asked(getvariable('kv_head')::INTEGER, kv_head);
CREATE OR REPLACE MACRO is_source(source) AS
  is_asked(getvariable('source'), source);
CREATE OR REPLACE MACRO is_traffic(source, workload, phase) AS
  is_source(source)
  AND is_asked(getvariable('workload'), workload)
  AND is_asked(getvariable('phase'), phase);

-- The octave n of positions, 2^n to 2^(n+1) - 1; position 0 counts with 1.
CREATE OR REPLACE MACRO octave_of(place) AS
  floor(log2(greatest(place, 1)))::INTEGER;
CREATE OR REPLACE MACRO octave_from(octave) AS
  CASE WHEN octave = 0 THEN 0 ELSE CAST(pow(2, octave) AS BIGINT) END;
CREATE OR REPLACE MACRO octave_to(octave) AS
  CAST(pow(2, octave + 1) AS BIGINT) - 1;

-- A share of sums; NULL where there is nothing to share.
CREATE OR REPLACE MACRO share(part, whole) AS part / nullif(whole, 0);

-- Signal to quantization noise in dB; NULL where nothing was lost.
CREATE OR REPLACE MACRO sqnr_db(sum_sq_signal, sum_sq_error) AS
  10 * log10(nullif(sum_sq_signal, 0) / nullif(sum_sq_error, 0));

-- The magnitude that a code of a layer's dtype stands for.
CREATE OR REPLACE MACRO magnitude(code, dtype) AS
  CASE dtype
    WHEN 'bfloat16' THEN
      CASE WHEN code < 128 THEN code / 128 * pow(2, -126)
      ELSE (1 + (code & 127) / 128) * pow(2, (code >> 7) - 127) END
    WHEN 'float16' THEN
      CASE WHEN code < 1024 THEN code / 1024 * pow(2, -14)
      ELSE (1 + (code & 1023) / 1024) * pow(2, (code >> 10) - 15) END
    WHEN 'float32' THEN
      CASE WHEN code < 8388608 THEN code / 8388608 * pow(2, -126)
      ELSE (1 + (code & 8388607) / 8388608) * pow(2, (code >> 23) - 127) END
  END;

-- The logarithm of the number of ways to choose some of a total.
CREATE OR REPLACE MACRO log_choose(total, chosen) AS
  lgamma(total + 1) - lgamma(chosen + 1) - lgamma(total - chosen + 1);

-- Lengths where classes end, as asked for (512,4096) or else by quantile, and
-- the class of a length, from 0.
CREATE OR REPLACE MACRO length_edges(asked, lengths) AS
  coalesce(
    string_split(asked, ',')::BIGINT[],
    quantile_disc(lengths, [0.25, 0.75, 0.95])
  );
CREATE OR REPLACE MACRO length_class(num_tokens, edges) AS
  list_sum([(num_tokens > edge)::INTEGER FOR edge IN edges])::INTEGER;

-- Whether two scales are the same; an engine may keep them as bf16.
CREATE OR REPLACE MACRO is_same_scale(scale, other) AS
  abs(scale / other - 1) <= 0.004;

-- The candidates that quantize.
CREATE OR REPLACE VIEW quantizing AS
SELECT candidate, ordinal, kind, status, granularity, rounding_floor_db
FROM candidates
WHERE kind <> 'bf16';

-- The valid ones with a scale per head.
CREATE OR REPLACE VIEW per_head_candidates AS
SELECT candidate, ordinal
FROM quantizing
WHERE status = 'valid' AND granularity = 'attn_head';

-- The requests of the traffic chosen, captured or not.
CREATE OR REPLACE VIEW chosen_requests AS
SELECT *
FROM requests
WHERE is_source(source) AND is_asked(getvariable('workload'), workload);

-- Where classes of lengths end. One row each for length prompt and output.
CREATE OR REPLACE VIEW length_edges_asked AS
SELECT 'prompt' AS length,
  length_edges(getvariable('prompt_edges'), prompt_tokens) AS edges
FROM requests
WHERE sampled
UNION ALL
SELECT 'output', length_edges(getvariable('output_edges'), output_tokens)
FROM requests
WHERE sampled;

-- One row per (source, sampled request, length).
--   num_tokens    of its prompt or output
--   class_number  0 for the shortest
CREATE OR REPLACE VIEW length_classes AS
SELECT source, request, length, num_tokens,
  length_class(num_tokens, edges) AS class_number
FROM (
    SELECT source, request, 'prompt' AS length, prompt_tokens AS num_tokens
    FROM requests
    WHERE sampled
    UNION ALL
    SELECT source, request, 'output', output_tokens
    FROM requests
    WHERE sampled
  )
  JOIN length_edges_asked USING (length);

-- The cells of the traffic chosen, under every candidate, with their weight.
CREATE OR REPLACE VIEW traffic_cells AS
SELECT cells.*, weight, 0 AS stratum
FROM cells JOIN sampling USING (source, sampling_id)
WHERE is_head(tensor, layer, kv_head) AND is_traffic(source, workload, phase);

-- The same under the candidates chosen.
CREATE OR REPLACE VIEW chosen_cells AS
SELECT *
FROM traffic_cells
WHERE is_candidate(candidate);

-- Sums by group of requests; no rows where the run has none.
CREATE OR REPLACE VIEW traffic_groups AS
SELECT groups.*, weight, 0 AS stratum
FROM groups JOIN sampling USING (source, sampling_id)
WHERE is_head(tensor, layer, kv_head) AND is_traffic(source, workload, phase);
CREATE OR REPLACE VIEW chosen_groups AS
SELECT *
FROM traffic_groups
WHERE is_candidate(candidate);

-- Magnitudes counted, over all heads.
CREATE OR REPLACE VIEW chosen_magnitudes AS
SELECT source, tensor, workload, magnitude, weight * num_values AS w_values
FROM magnitudes JOIN sampling USING (source, sampling_id)
WHERE is_source(source) AND is_asked(getvariable('workload'), workload);

-- One row per (source, valid candidate, layer, kv_head, tensor) chosen.
CREATE OR REPLACE VIEW chosen_scales AS
SELECT *
FROM scales
WHERE is_candidate(candidate)
  AND is_head(tensor, layer, kv_head)
  AND is_source(source);

-- One row per (source, valid candidate): the traces that it exists in.
CREATE OR REPLACE VIEW candidate_sources AS
SELECT DISTINCT source, candidate
FROM scales;

-- One row per captured token, with its request and its weight.
--   generation_step  0 for the first generated token; NULL in the prompt
--   incomplete       whether its request was not captured in full
CREATE OR REPLACE VIEW tokens AS
SELECT rows.source, rows."row", rows.request, rows.position,
  rows.position_octave, rows.phase, rows.sampling_id,
  CASE WHEN rows.phase = 'decode' THEN rows.position - prompt_tokens END
    AS generation_step,
  workload, prompt_tokens, output_tokens,
  incomplete, weight
FROM rows
  JOIN requests USING (source, request)
  JOIN sampling
    ON rows.source = sampling.source
    AND rows.sampling_id = sampling.sampling_id;

-- The tokens of the traffic chosen.
CREATE OR REPLACE VIEW chosen_tokens AS
SELECT *, 0 AS stratum
FROM tokens
WHERE is_traffic(source, workload, phase);

-- One row per vector (one token's values of one head) of the heads chosen.
CREATE OR REPLACE VIEW chosen_vectors AS
SELECT *
FROM vectors
WHERE is_head(tensor, layer, kv_head) AND is_source(source);

-- One row per (source, layer, kv_head, tensor): the largest code that every
-- candidate chosen covers. Codes up to it need not be told apart, which keeps
-- counts by code small.
CREATE OR REPLACE VIEW in_range_codes AS
SELECT source, layer, kv_head, tensor, min(max_in_range_code) AS max_code
FROM chosen_scales
GROUP BY source, layer, kv_head, tensor;

-- One row per (source, row, layer, kv_head, tensor, candidate) with a value
-- out of range.
--   is_clipped  whether one is clipped
CREATE OR REPLACE VIEW vectors_out_of_range AS
SELECT source, "row", layer, kv_head, tensor, candidate,
  absmax_code > max_unclipped_code AS is_clipped
FROM chosen_vectors
  JOIN in_range_codes USING (source, layer, kv_head, tensor)
  JOIN chosen_scales USING (source, layer, kv_head, tensor)
WHERE absmax_code > max_code  -- few are, so that few meet every candidate
  AND absmax_code > max_in_range_code;

-- One row per (source, row, layer, kv_head, tensor, candidate), all tokens of
-- the traffic: whether the vector leaves the range. For few candidates.
--   is_finite  whether it has a finite value; one that has none leaves no range
CREATE OR REPLACE VIEW judged_vectors AS
SELECT tokens.*, candidate, tensor, layer, kv_head, scale, is_quantized,
  has_nonfinite,
  absmax_code IS NOT NULL AS is_finite,
  coalesce(absmax_code > max_in_range_code, false) AS is_out_of_range,
  coalesce(absmax_code > max_unclipped_code, false) AS is_clipped
FROM chosen_vectors
  JOIN chosen_tokens AS tokens USING (source, "row")
  JOIN chosen_scales USING (source, layer, kv_head, tensor);

-- Values counted and their errors summed, head by head. One row per
-- (candidate, tensor, layer, kv_head, stratum).
--   strata  like chosen_cells
CREATE OR REPLACE MACRO value_sums(strata) AS TABLE
SELECT candidate, tensor, layer, kv_head, stratum,
  sum(num_vectors)::BIGINT AS num_tokens,
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
  sum(weight * sum_sq_clip_error) AS w_sq_clip_error,
  -- Summed in different orders: what is left may lie just below 0.
  greatest(sum(weight * (sum_sq_error - sum_sq_clip_error)), 0)
    AS w_sq_other_error,
  max(max_abs) AS max_abs
FROM query_table(strata)
GROUP BY ALL;

-- The same over all heads. One row per (candidate, tensor, stratum).
--   num_heads                 (layer, kv_head) pairs measured
--   num_heads_out_of_range    heads with a value out of range
--   num_heads_clipped         heads with a clipped value
--   worst_layer               layer of the head with the highest share of
--                             values clipped, then out of range; NULL: all in
--                             range
--   worst_kv_head             its KV head
--   worst_clipped_frac        its share of values clipped
CREATE OR REPLACE MACRO value_totals(strata) AS TABLE
SELECT candidate, tensor, stratum, num_heads, num_heads_out_of_range,
  num_heads_clipped, worst.layer AS worst_layer,
  worst.kv_head AS worst_kv_head, abs(worst.clipped) AS worst_clipped_frac,
  num_values, num_out_of_range, num_clipped, num_flushed, num_nonfinite,
  share(w_out_of_range, w_values) AS out_of_range_frac,
  share(w_clipped, w_values) AS clipped_frac,
  share(w_flushed, w_values) AS flushed_frac,
  share(w_sq_clip_error, w_sq_error) AS clip_error_frac,
  sqrt(share(w_sq_error, w_sq_signal)) AS relative_error,
  sqnr_db(w_sq_signal, w_sq_error) AS sqnr_db,
  max_abs
FROM (
  SELECT candidate, tensor, stratum,
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
    sum(w_sq_clip_error) AS w_sq_clip_error,
    max(max_abs) AS max_abs
  FROM value_sums(strata)
  GROUP BY candidate, tensor, stratum
);

-- Vectors counted, head by head: one leaves the range when its widest value
-- does. One row per (candidate, tensor, layer, kv_head, stratum).
--   strata  like chosen_tokens
CREATE OR REPLACE MACRO vector_sums(strata) AS TABLE
SELECT candidate, tensor, layer, kv_head, stratum,
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
FROM chosen_scales
  JOIN (
    -- By code, so that a candidate compares a few hundred codes a head and not
    -- every vector.
    SELECT source, layer, kv_head, tensor, stratum,
      greatest(absmax_code, max_code) AS absmax_code,
      count(*) AS num_vectors, sum(weight) AS w_vectors
    FROM chosen_vectors
      JOIN query_table(strata) USING (source, "row")
      JOIN in_range_codes USING (source, layer, kv_head, tensor)
    WHERE absmax_code IS NOT NULL
    GROUP BY ALL
  ) USING (source, layer, kv_head, tensor)
GROUP BY ALL;

-- The same over all heads. One row per (candidate, tensor, stratum).
CREATE OR REPLACE MACRO vector_totals(strata) AS TABLE
SELECT candidate, tensor, stratum, num_vectors, num_vectors_out_of_range,
  num_vectors_clipped,
  share(w_vectors_out_of_range, w_vectors) AS vectors_out_of_range_frac,
  share(w_vectors_clipped, w_vectors) AS vectors_clipped_frac,
  num_heads, num_heads_out_of_range, worst.layer AS worst_layer,
  worst.kv_head AS worst_kv_head,
  abs(worst.clipped) AS worst_vectors_clipped_frac
FROM (
  SELECT candidate, tensor, stratum,
    sum(num_vectors)::BIGINT AS num_vectors,
    sum(num_vectors_out_of_range)::BIGINT AS num_vectors_out_of_range,
    sum(num_vectors_clipped)::BIGINT AS num_vectors_clipped,
    sum(w_vectors) AS w_vectors,
    sum(w_vectors_out_of_range) AS w_vectors_out_of_range,
    sum(w_vectors_clipped) AS w_vectors_clipped,
    count(*) AS num_heads,
    count(*) FILTER (num_vectors_out_of_range > 0) AS num_heads_out_of_range,
    min({
      'clipped': -w_vectors_clipped / w_vectors,
      'out_of_range': -w_vectors_out_of_range / w_vectors,
      'layer': layer, 'kv_head': kv_head
    }) FILTER (num_vectors_out_of_range > 0) AS worst
  FROM vector_sums(strata)
  GROUP BY candidate, tensor, stratum
);

-- What was captured. One row per stratum.
--   strata  like chosen_tokens
CREATE OR REPLACE MACRO coverage(strata) AS TABLE
SELECT stratum,
  count(DISTINCT (source, request)) AS num_requests,
  count(DISTINCT (source, request)) FILTER (incomplete)
    AS num_incomplete_requests,
  count(*) AS num_tokens
FROM query_table(strata)
GROUP BY stratum;

-- The interval of the share of vectors with a clipped value. One row per
-- (candidate, tensor, stratum).
--   strata                like chosen_tokens
--   num_counted_requests  requests that it counts
CREATE OR REPLACE MACRO vector_intervals(strata) AS TABLE
SELECT candidate, tensor, stratum, num_counted_requests,
  fraction_low(clipped) AS vectors_clipped_low,
  fraction_high(clipped) AS vectors_clipped_high
FROM (
  SELECT candidate, tensor, stratum, count(*) AS num_counted_requests,
    request_sums(coalesce(x, 0), n) AS clipped
  FROM (
      SELECT source, tensor, stratum, request, sum(weight) AS n
      FROM chosen_vectors JOIN query_table(strata) USING (source, "row")
      WHERE absmax_code IS NOT NULL
      GROUP BY ALL
    )
    JOIN candidate_sources USING (source)
    LEFT JOIN (
      SELECT candidate, source, tensor, stratum, request, sum(weight) AS x
      FROM vectors_out_of_range JOIN query_table(strata) USING (source, "row")
      WHERE is_clipped
      GROUP BY ALL
    ) USING (candidate, source, tensor, stratum, request)
  WHERE is_candidate(candidate)
  GROUP BY candidate, tensor, stratum
);

-- Sums by group of requests. One row per (candidate, tensor, stratum,
-- request_group).
--   strata  like chosen_groups
CREATE OR REPLACE MACRO group_sums(strata) AS TABLE
SELECT candidate, tensor, stratum, request_group,
  sum(weight * num_values) AS w_values,
  sum(weight * num_out_of_range) AS w_out_of_range,
  sum(weight * num_clipped) AS w_clipped,
  sum(weight * sum_sq_signal) AS w_sq_signal,
  sum(weight * sum_sq_error) AS w_sq_error,
  sum(weight * sum_sq_clip_error) AS w_sq_clip_error
FROM query_table(strata)
GROUP BY ALL;

-- The intervals of ratios of values. One row per (candidate, tensor, stratum).
CREATE OR REPLACE MACRO value_intervals(strata) AS TABLE
SELECT candidate, tensor, stratum,
  ratio_low(clipped, counted) AS clipped_low,
  ratio_high(clipped, counted) AS clipped_high,
  ratio_low(clip_error, error) AS clip_error_low,
  ratio_high(clip_error, error) AS clip_error_high,
  sqnr_db(ratio_low(signal, error), 1) AS sqnr_low_db,
  sqnr_db(ratio_high(signal, error), 1) AS sqnr_high_db
FROM (
  SELECT candidate, tensor, stratum,
    list(w_values ORDER BY request_group) AS counted,
    list(w_clipped ORDER BY request_group) AS clipped,
    list(w_sq_signal ORDER BY request_group) AS signal,
    list(w_sq_error ORDER BY request_group) AS error,
    list(w_sq_clip_error ORDER BY request_group) AS clip_error
  FROM group_sums(strata)
  GROUP BY candidate, tensor, stratum
);

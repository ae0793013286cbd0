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

-- A stratum of a head or of all heads; NULL means all.
CREATE OR REPLACE MACRO stratum_of(layer, kv_head, workload, phase, octave) AS
  {
    'layer': layer, 'kv_head': kv_head, 'workload': workload, 'phase': phase,
    'octave': octave
  };

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

-- The head with the highest share clipped, then out of range; NULL: all are in
-- range. Its shares are negative, so that the first of equal heads is least.
CREATE OR REPLACE MACRO worst_head(clipped, out_of_range, layer, kv_head) AS
  min({
    'clipped': -clipped, 'out_of_range': -out_of_range, 'layer': layer,
    'kv_head': kv_head
  }) FILTER (out_of_range > 0);

-- The magnitude that a code of a layer's dtype stands for.
CREATE OR REPLACE MACRO float_magnitude(code, mantissa_bits, bias) AS
  CASE WHEN code < 1 << mantissa_bits
    THEN code / (1 << mantissa_bits) * pow(2, 1 - bias)
    ELSE (1 + (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits))
      * pow(2, (code >> mantissa_bits) - bias) END;
CREATE OR REPLACE MACRO magnitude(code, dtype) AS
  CASE dtype WHEN 'bfloat16' THEN float_magnitude(code, 7, 127)
    WHEN 'float16' THEN float_magnitude(code, 10, 15)
    WHEN 'float32' THEN float_magnitude(code, 23, 127) END;

-- The logarithm of the number of ways to choose some of a total.
CREATE OR REPLACE MACRO log_choose(total, chosen) AS
  lgamma(total + 1) - lgamma(chosen + 1) - lgamma(total - chosen + 1);

-- Whether two scales are the same; an engine may keep them as bf16.
CREATE OR REPLACE MACRO is_same_scale(scale, other) AS
  abs(scale / other - 1) <= 0.004;

-- The candidates that quantize.
CREATE OR REPLACE VIEW quantizing AS
SELECT candidate, ordinal, kind, status, granularity, rounding_floor_db
FROM candidates
WHERE kind <> 'bf16';

-- The requests of the traffic chosen, captured or not.
CREATE OR REPLACE VIEW chosen_requests AS
SELECT * FROM requests
WHERE is_source(source) AND is_asked(getvariable('workload'), workload);

-- One row per (source, sampled request, length): its prompt, its output.
CREATE OR REPLACE VIEW lengths AS
SELECT source, request, unnest(['prompt', 'output']) AS length,
  unnest([prompt_tokens, output_tokens]) AS num_tokens
FROM requests
WHERE sampled;

-- Where classes of lengths end, as asked for (512,4096) or else by quantile.
-- One row each for length prompt and output.
CREATE OR REPLACE VIEW length_edges AS
SELECT length, coalesce(
    string_split(coalesce(
      getvariable('edges'),
      if(length = 'prompt', getvariable('prompt_edges'),
        getvariable('output_edges'))
    ), ',')::BIGINT[],
    quantile_disc(num_tokens, [0.25, 0.75, 0.95])
  ) AS edges
FROM lengths
GROUP BY length;

-- The lengths, each with its class.
--   class_number            0 for the shortest
--   tokens_from, tokens_to  shortest and longest of its class
CREATE OR REPLACE VIEW length_classes AS
SELECT *, min(num_tokens) OVER same AS tokens_from,
  max(num_tokens) OVER same AS tokens_to
FROM (
  SELECT *, list_sum([(num_tokens > edge)::INTEGER FOR edge IN edges])::INTEGER
    AS class_number
  FROM lengths JOIN length_edges USING (length)
)
WINDOW same AS (PARTITION BY length, class_number);

-- The cells of the traffic chosen, under every candidate.
--   num_rows  captured rows, which the view cells calls num_vectors
CREATE OR REPLACE VIEW traffic_cells AS
SELECT * RENAME (num_vectors AS num_rows), 0 AS stratum FROM cells
WHERE is_head(tensor, layer, kv_head) AND is_traffic(source, workload, phase);

-- The same under the candidates chosen.
CREATE OR REPLACE VIEW chosen_cells AS
SELECT * FROM traffic_cells WHERE is_candidate(candidate);

-- The same with the scale that each was quantized by.
CREATE OR REPLACE VIEW scaled_cells AS
SELECT cells.*, scale, covered_amax, calibrated_amax, is_quantized
FROM chosen_cells AS cells
  JOIN scales USING (source, candidate, layer, kv_head, tensor);

-- Sums by group of requests; no rows where the run has none.
CREATE OR REPLACE VIEW traffic_groups AS
SELECT *, 0 AS stratum FROM groups
WHERE is_head(tensor, layer, kv_head) AND is_traffic(source, workload, phase);
CREATE OR REPLACE VIEW chosen_groups AS
SELECT * FROM traffic_groups WHERE is_candidate(candidate);

-- Sums over the ordinary channels of heads with outlier channels; not by
-- phase, nor by position.
CREATE OR REPLACE VIEW chosen_ordinary AS
SELECT *, 0 AS stratum FROM ordinary_channels
WHERE is_candidate(candidate) AND is_head(tensor, layer, kv_head)
  AND is_source(source) AND is_asked(getvariable('workload'), workload);

-- Magnitudes counted, over all heads.
CREATE OR REPLACE VIEW chosen_magnitudes AS
SELECT source, tensor, workload, magnitude, weight * num_values AS w_values
FROM magnitudes JOIN sampling USING (source, sampling_id)
WHERE is_source(source) AND is_asked(getvariable('workload'), workload);

-- One row per (source, valid candidate, layer, kv_head, tensor) chosen.
CREATE OR REPLACE VIEW chosen_scales AS
SELECT * FROM scales
WHERE is_candidate(candidate) AND is_head(tensor, layer, kv_head)
  AND is_source(source);

-- What each head covers, the smallest over sources. One row per (candidate,
-- tensor, layer, kv_head).
CREATE OR REPLACE VIEW covered_heads AS
SELECT candidate, tensor, layer, kv_head,
  min(covered_amax) AS covered_amax,
  min(calibrated_amax) AS calibrated_amax, min(scale) AS scale
FROM chosen_scales
GROUP BY candidate, tensor, layer, kv_head;

-- What the captured engine used, where its cache was FP8.
CREATE OR REPLACE VIEW effective_scales AS
SELECT source, layer, kv_head, tensor, scale AS effective_scale
FROM scales JOIN candidates USING (candidate)
WHERE kind = 'effective';

-- One row per candidate that quantizes some layers and leaves others.
--   layers  list of those it leaves, in every head
CREATE OR REPLACE VIEW layers_left_out AS
SELECT candidate, list(layer ORDER BY layer) FILTER (is_left) AS layers
FROM (
  SELECT candidate, layer, bool_and(NOT is_quantized) AS is_left
  FROM scales
  GROUP BY candidate, layer
)
GROUP BY candidate
HAVING NOT bool_and(is_left);

-- One row per (source, valid candidate): the traces that it exists in.
CREATE OR REPLACE VIEW candidate_sources AS
SELECT DISTINCT source, candidate FROM scales;

-- One row per captured token, with its request and its weight.
--   generation_step  0 for the first generated token; NULL in the prompt
--   step_octave      n: generated tokens 2^n to 2^(n+1) - 1, counted from 1;
--                    -1 in the prompt
--   incomplete       whether its request was not captured in full
CREATE OR REPLACE VIEW tokens AS
SELECT rows.*,
  CASE WHEN phase = 'decode' THEN position - prompt_tokens END
    AS generation_step,
  coalesce(floor(log2(generation_step + 1)), -1)::INTEGER AS step_octave,
  workload, prompt_tokens, output_tokens, incomplete, weight
FROM rows
  JOIN sampling USING (source, sampling_id)
  JOIN requests USING (source, request);

-- The tokens of the traffic chosen.
CREATE OR REPLACE VIEW chosen_tokens AS
SELECT *, 0 AS stratum FROM tokens
WHERE is_traffic(source, workload, phase);

-- One row per vector (one token's values of one head) of the heads chosen.
CREATE OR REPLACE VIEW chosen_vectors AS
SELECT * FROM vectors
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

-- Values counted and their errors summed, head by head. One row per
-- (candidate, tensor, layer, kv_head, stratum).
--   strata            like chosen_cells: of its num_x columns num_x is the sum
--                     and w_x the weighted one, of its sum_x columns w_x is
--   w_sq_other_error  squared error of values that are not clipped; at least
--                     0, though the sums' digits may lie below
--   *_frac            shares, 0 to 1
CREATE OR REPLACE MACRO value_sums(strata) AS TABLE
SELECT * REPLACE (greatest(w_sq_other_error, 0) AS w_sq_other_error),
  share(COLUMNS('^w_(out_of_range|clipped|flushed)$'), w_values) AS "\1_frac",
  share(w_sq_clip_error, w_sq_error) AS clip_error_frac,
  sqnr_db(w_sq_signal, w_sq_error) AS sqnr_db
FROM (
  SELECT candidate, tensor, layer, kv_head, stratum,
    sum(COLUMNS('^num_'))::BIGINT AS "\0",
    sum(weight * COLUMNS('^num_(.*)')) AS "w_\1",
    sum(weight * COLUMNS('^sum_(.*)')) AS "w_\1",
    max(COLUMNS('^(max_abs|channel_count)$')) AS "\0"
  FROM (
      -- Weighted once a sampling rule and not once a cell, of which there are
      -- millions.
      SELECT source, sampling_id, candidate, tensor, layer, kv_head, stratum,
        sum(COLUMNS('^(num|sum)_')) AS "\0",
        sum(sum_sq_error - coalesce(sum_sq_clip_error, 0))
          AS sum_sq_other_error,
        max(COLUMNS('^(max_abs|channel_count)$')) AS "\0"
      FROM query_table(strata)
      GROUP BY ALL
    )
    JOIN sampling USING (source, sampling_id)
  GROUP BY candidate, tensor, layer, kv_head, stratum
);

-- The two kinds of channels of heads in which a few outliers hold most of
-- Σ x². One row per (candidate, tensor, layer, kv_head), of the traces in
-- which the head has such channels.
--   channel_count          ordinary channels of the head
--   ordinary_error         Σ error² of what is not clipped / Σ x², of these
--   ordinary_sqnr_db       what rounding and clipping leave of these
--   outlier_sqnr_db        the same of the others; NULL: they lose nothing
--   ordinary_flushed_frac  share of these channels' values flushed to 0
--   outlier_signal_frac    share of the head's Σ x² in the others
CREATE OR REPLACE VIEW channel_classes AS
WITH cells_of_both AS (
  SELECT cells.*
  FROM chosen_cells AS cells
    SEMI JOIN chosen_ordinary
      USING (source, candidate, layer, kv_head, tensor)
)
SELECT candidate, tensor, layer, kv_head, channel_count,
  share(ordinary.w_sq_other_error, ordinary.w_sq_signal) AS ordinary_error,
  ordinary.sqnr_db AS ordinary_sqnr_db,
  sqnr_db(
    greatest(whole.w_sq_signal - ordinary.w_sq_signal, 0),
    greatest(whole.w_sq_error - ordinary.w_sq_error, 0)
  ) AS outlier_sqnr_db,
  ordinary.flushed_frac AS ordinary_flushed_frac,
  1 - share(ordinary.w_sq_signal, whole.w_sq_signal) AS outlier_signal_frac
FROM value_sums(chosen_ordinary) AS ordinary
  JOIN value_sums(cells_of_both) AS whole
    USING (candidate, tensor, layer, kv_head);

-- The same over all heads. One row per (candidate, tensor, stratum).
--   num_heads               (layer, kv_head) pairs measured
--   num_heads_out_of_range  heads with a value out of range
--   num_heads_clipped       heads with a clipped value
--   worst_layer             layer of the head with the highest share of values
--                           clipped, then out of range; NULL: all in range
--   worst_kv_head           its KV head
--   worst_clipped_frac      its share of values clipped
--   worst_sqnr_db           of the head with the lowest
CREATE OR REPLACE MACRO value_totals(strata) AS TABLE
SELECT *,
  share(COLUMNS('^w_(out_of_range|clipped|flushed)$'), w_values) AS "\1_frac",
  share(w_sq_clip_error, w_sq_error) AS clip_error_frac,
  sqrt(share(w_sq_error, w_sq_signal)) AS relative_error,
  sqnr_db(w_sq_signal, w_sq_error) AS sqnr_db,
  worst.layer AS worst_layer, worst.kv_head AS worst_kv_head,
  abs(worst.clipped) AS worst_clipped_frac
FROM (
  SELECT candidate, tensor, stratum,
    count(*) AS num_heads,
    count(*) FILTER (num_out_of_range > 0) AS num_heads_out_of_range,
    count(*) FILTER (num_clipped > 0) AS num_heads_clipped,
    worst_head(clipped_frac, out_of_range_frac, layer, kv_head) AS worst,
    min(sqnr_db) AS worst_sqnr_db,
    sum(COLUMNS('^num_'))::BIGINT AS "\0",
    sum(COLUMNS('^w_')) AS "\0",
    max(max_abs) AS max_abs
  FROM value_sums(strata)
  GROUP BY candidate, tensor, stratum
);

-- Vectors counted, head by head: one leaves the range when its widest value
-- does. One row per (candidate, tensor, layer, kv_head, stratum).
--   strata  like chosen_tokens
CREATE OR REPLACE MACRO vector_sums(strata) AS TABLE
SELECT *, share(COLUMNS('^w_(vectors_.*)'), w_vectors) AS "\1_frac"
FROM (
  SELECT candidate, tensor, layer, kv_head, stratum,
    min(covered_amax) AS covered_amax,
    sum(n)::BIGINT AS num_vectors,
    sum(if(code > max_in_range_code, n, 0))::BIGINT
      AS num_vectors_out_of_range,
    sum(if(code > max_unclipped_code, n, 0))::BIGINT AS num_vectors_clipped,
    sum(w) AS w_vectors,
    sum(if(code > max_in_range_code, w, 0)) AS w_vectors_out_of_range,
    sum(if(code > max_unclipped_code, w, 0)) AS w_vectors_clipped
  FROM chosen_scales
    JOIN (
      -- By code, so that a candidate compares a few hundred codes a head and
      -- not every vector.
      SELECT source, layer, kv_head, tensor, stratum,
        greatest(absmax_code, max_code) AS code,
        count(*) AS n, sum(weight) AS w
      FROM chosen_vectors
        -- LEFT: an inner join is planned as heads times tokens, then vectors.
        LEFT JOIN in_range_codes USING (source, layer, kv_head, tensor)
        JOIN query_table(strata) USING (source, "row")
      WHERE absmax_code IS NOT NULL
      GROUP BY ALL
    ) USING (source, layer, kv_head, tensor)
  GROUP BY ALL
);

-- The same over all heads. One row per (candidate, tensor, stratum).
CREATE OR REPLACE MACRO vector_totals(strata) AS TABLE
SELECT *,
  share(COLUMNS('^w_(vectors_.*)'), w_vectors) AS "\1_frac",
  worst.layer AS worst_layer, worst.kv_head AS worst_kv_head,
  abs(worst.clipped) AS worst_vectors_clipped_frac
FROM (
  SELECT candidate, tensor, stratum,
    count(*) AS num_heads,
    count(*) FILTER (num_vectors_out_of_range > 0) AS num_heads_out_of_range,
    worst_head(
      vectors_clipped_frac, vectors_out_of_range_frac, layer, kv_head
    ) AS worst,
    sum(COLUMNS('^num_'))::BIGINT AS "\0",
    sum(COLUMNS('^w_')) AS "\0"
  FROM vector_sums(strata)
  GROUP BY candidate, tensor, stratum
);

-- Every vector of the strata under every candidate chosen, one by one: for few
-- candidates. One row per (source, row, layer, kv_head, tensor, candidate).
--   strata     like chosen_tokens
--   is_finite  whether it has a finite value; else it leaves no range
CREATE OR REPLACE MACRO judged_vectors(strata) AS TABLE
SELECT token.*, candidate, tensor, layer, kv_head, has_nonfinite, is_quantized,
  scale IS NOT NULL OR max_unclipped_code IS NOT NULL AS can_clip,
  absmax_code IS NOT NULL AS is_finite,
  coalesce(absmax_code > max_in_range_code, false) AS is_out_of_range,
  coalesce(absmax_code > max_unclipped_code, false) AS is_clipped
FROM chosen_vectors
  JOIN query_table(strata) AS token USING (source, "row")
  JOIN chosen_scales USING (source, layer, kv_head, tensor);

-- The same counted by request, weighted. One row per (candidate, tensor,
-- layer, kv_head, stratum, source, request).
--   n  vectors with a finite value
CREATE OR REPLACE MACRO request_vectors(strata) AS TABLE
SELECT candidate, tensor, layer, kv_head, stratum, source, request,
  is_quantized, can_clip,
  coalesce(sum(weight) FILTER (is_finite), 0) AS n,
  coalesce(sum(weight) FILTER (is_out_of_range), 0) AS out_of_range,
  coalesce(sum(weight) FILTER (is_clipped), 0) AS clipped,
  count(*) FILTER (has_nonfinite) AS num_nonfinite
FROM judged_vectors(strata)
GROUP BY ALL;

-- What intervals need of requests, under the names of
-- kvtrace.stats.RequestSums. One row per (candidate, tensor, stratum).
--   requests  out_of_range and clipped of n vectors, weighted, one row each;
--             its num_ columns are summed
CREATE OR REPLACE MACRO request_columns(requests) AS TABLE
SELECT candidate, tensor, stratum, sum(COLUMNS('^num_'))::BIGINT AS "\0",
  count(nullif(n, 0)) AS num_requests,
  sum(n) AS sum_trials, sum(n * n) AS sum_trials_sq,
  count(nullif(COLUMNS('^(out_of_range|clipped)$'), 0)) AS "num_affected_\1",
  sum(COLUMNS('^(out_of_range|clipped)$')) AS "sum_\1",
  sum(COLUMNS('^(out_of_range|clipped)$') ^ 2) AS "sum_\1_sq",
  sum(COLUMNS('^(out_of_range|clipped)$') * n) AS "sum_\1_trials",
  max(share(COLUMNS('^(out_of_range|clipped)$'), n)) AS "max_request_\1"
FROM query_table(requests)
GROUP BY candidate, tensor, stratum;

-- What was captured. One row per stratum.
--   strata  like chosen_tokens
CREATE OR REPLACE MACRO coverage(strata) AS TABLE
SELECT stratum,
  count(DISTINCT (source, request)) AS num_requests,
  count(DISTINCT (source, request)) FILTER (incomplete)
    AS num_incomplete_requests,
  count(*) AS num_tokens,
  min(position) AS first_position, max(position) AS last_position,
  min(prompt_tokens) AS min_prompt_tokens,
  max(prompt_tokens) AS max_prompt_tokens,
  min(output_tokens) AS min_output_tokens,
  max(output_tokens) AS max_output_tokens
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

-- What the queries say of vectors by stratum: shares with their interval, what
-- was captured, the worst head. One row per (candidate, tensor, stratum).
--   strata  like chosen_tokens
CREATE OR REPLACE MACRO vector_strata(strata) AS TABLE
SELECT ordinal, candidate, tensor, stratum, vectors_out_of_range_frac,
  vectors_clipped_frac, vectors_clipped_low, vectors_clipped_high,
  num_requests, num_incomplete_requests, num_tokens, num_vectors,
  num_vectors_out_of_range, num_vectors_clipped, num_heads,
  num_heads_out_of_range, worst_layer, worst_kv_head,
  worst_vectors_clipped_frac
FROM vector_totals(strata)
  JOIN quantizing USING (candidate)
  JOIN coverage(strata) USING (stratum)
  LEFT JOIN vector_intervals(strata) USING (candidate, tensor, stratum);

-- Sums by group of requests. One row per (candidate, tensor, stratum,
-- request_group).
--   strata  like chosen_groups
CREATE OR REPLACE MACRO group_sums(strata) AS TABLE
SELECT candidate, tensor, stratum, request_group,
  sum(weight * COLUMNS('^num_(.*)')) AS "w_\1",
  sum(weight * COLUMNS('^sum_(.*)')) AS "w_\1"
FROM query_table(strata) JOIN sampling USING (source, sampling_id)
GROUP BY ALL;

-- The intervals of ratios of values. One row per (candidate, tensor, stratum).
CREATE OR REPLACE MACRO value_intervals(strata) AS TABLE
SELECT candidate, tensor, stratum,
  ratio_low(clipped, "values") AS clipped_low,
  ratio_high(clipped, "values") AS clipped_high,
  ratio_low(sq_clip_error, sq_error) AS clip_error_low,
  ratio_high(sq_clip_error, sq_error) AS clip_error_high,
  sqnr_db(ratio_low(sq_signal, sq_error), 1) AS sqnr_low_db,
  sqnr_db(ratio_high(sq_signal, sq_error), 1) AS sqnr_high_db
FROM (
  SELECT candidate, tensor, stratum,
    list(COLUMNS('^w_(.*)') ORDER BY request_group) AS "\1"
  FROM group_sums(strata)
  GROUP BY candidate, tensor, stratum
);

-- What the run knows of the harm that errors do, the same for all candidates
-- so that none is ranked beside another kind. One row.
--   knowledge  residual   W_O and the residual stream of every layer: R is a
--                         share of that stream, summed over layers
--              projected  W_O alone: relative to the attention's own output
--              heads      neither: a mean over layers and query heads
--              NULL       no queries were captured
CREATE OR REPLACE VIEW harm_knowledge AS
SELECT CASE WHEN NOT bool_and(projected IS NOT NULL) THEN 'heads'
  WHEN bool_and(residual_weight IS NOT NULL) THEN 'residual'
  WHEN count(*) > 0 THEN 'projected' END AS knowledge,
  count(DISTINCT layer) AS num_layers
FROM (SELECT DISTINCT source, layer FROM attention)
  LEFT JOIN (
    SELECT DISTINCT source, layer, 1 AS projected FROM attention_layers
  ) USING (source, layer)
  LEFT JOIN layers USING (source, layer);

-- The part of the traffic that harm is asked for: by workload, position, step.
CREATE OR REPLACE MACRO harm_place(workload, octave, step) AS {
  'workload': if(getvariable('by') = 'workload', workload, NULL),
  'octave': if(getvariable('by') = 'position', octave, NULL),
  'step': if(getvariable('by') = 'step', step, NULL)
};

-- Errors at the queries of the traffic chosen, head by head.
CREATE OR REPLACE VIEW traffic_attention AS
SELECT attention.*, harm_place(workload, position_octave, step_octave)
    AS stratum
FROM attention JOIN requests USING (source, request)
WHERE is_traffic(source, workload, phase);

-- What harm is made of: R is the sum over (layer, part) of factor · Σ do2 / Σ
-- o2.
--   part           query head where no W_O is known, else -1
--   request_group  0 to 15: requests dealt out in their order, for intervals
CREATE OR REPLACE VIEW traffic_harm AS
SELECT parts.*, harm_place(workload, position_octave, step_octave) AS stratum,
  (dense_rank() OVER (ORDER BY source, request) - 1) % 16 AS request_group
FROM (
    SELECT source, candidate, layer, request, phase, position_octave,
      step_octave, num_probes, query_head AS part, sum_o2 AS o2,
      sum_do2 AS do2, 1 / num_layers
        / count(DISTINCT query_head) OVER (PARTITION BY layer) AS factor
    FROM attention, harm_knowledge
    WHERE knowledge = 'heads'
    UNION ALL
    SELECT source, candidate, layer, request, phase, position_octave,
      step_octave, num_probes, -1, projected_o2, projected_do2,
      if(knowledge = 'residual', avg(residual_weight) OVER w, 1)
    FROM harm_knowledge, attention_layers JOIN layers USING (source, layer)
    WHERE knowledge <> 'heads'
    WINDOW w AS (PARTITION BY layer)
  ) AS parts
  JOIN requests USING (source, request)
WHERE is_traffic(source, workload, phase);

-- Harm by layer. One row per (candidate, stratum, layer).
--   strata  like traffic_harm
CREATE OR REPLACE MACRO layer_harm(strata) AS TABLE
SELECT candidate, stratum, layer, sum(factor * share(do2, o2)) AS layer_harm
FROM (
  SELECT candidate, stratum, layer, part, factor, sum(COLUMNS('^d?o2$'))
  FROM query_table(strata)
  GROUP BY ALL
)
GROUP BY ALL;

-- What attention's errors are made of, weighted by each layer's harm. One row
-- per (candidate, stratum).
--   shrinkage  Σ ⟨o, ô⟩ / Σ ‖o‖² - 1: the part of the error that is the same
--              everywhere, below 0 where outputs shrink
--   *_share    of the squared error by K, V and Q each alone, 0 to 1
CREATE OR REPLACE VIEW harm_causes AS
SELECT candidate, stratum,
  share(sum(w * COLUMNS('^([kvq])$')), sum(w * parts)) AS "\1_share",
  sum(layer_harm * o_do) / nullif(sum(layer_harm), 0) AS shrinkage,
  sum(COLUMNS('^(flipped_frac|attention_kl|top_overlap)$')) / sum(probes)
    AS "\1"
FROM (
    SELECT candidate, stratum, layer, sum(COLUMNS('^sum_do2_(.)$')) AS "\1",
      sum(sum_do2_k + sum_do2_v + sum_do2_q) AS parts,
      sum(sum_do2) AS do2, share(sum(sum_o_do), sum(sum_o2)) AS o_do,
      sum(num_probes) AS probes, sum(num_flips) AS flipped_frac,
      sum(sum_kl) AS attention_kl, sum(sum_top_overlap) AS top_overlap
    FROM traffic_attention
    GROUP BY ALL
  )
  JOIN layer_harm(traffic_harm) USING (candidate, stratum, layer),
  LATERAL (SELECT share(layer_harm, do2) AS w)
GROUP BY candidate, stratum;

-- Harm over all layers. One row per (candidate, stratum).
--   harm     R
--   without  R without each group of requests, a list in their order
CREATE OR REPLACE VIEW harm_totals AS
SELECT candidate, stratum, max(harm) AS harm, max(num_probes) AS num_probes,
  list(without ORDER BY request_group) AS without
FROM (
  SELECT candidate, stratum, request_group, max(all_probes) AS num_probes,
    sum(factor * share(all_do2, all_o2)) AS harm,
    sum(factor * share(all_do2 - do2, all_o2 - o2)) AS without
  FROM (
    SELECT candidate, stratum, layer, part, factor, request_group,
      sum(COLUMNS('^(d?o2)$')) AS "\1",
      sum(sum(num_probes)) OVER same AS all_probes,
      sum(sum(COLUMNS('^(d?o2)$'))) OVER same AS "all_\1"
    FROM traffic_harm
    GROUP BY candidate, stratum, layer, part, factor, request_group
    WINDOW same AS (PARTITION BY candidate, stratum, layer, part)
  )
  GROUP BY ALL
)
GROUP BY candidate, stratum;

-- Harm of single requests. One row per (candidate, stratum).
CREATE OR REPLACE VIEW request_harm AS
WITH by_request AS (
  SELECT * REPLACE (
    {'of': stratum, 'source': source, 'request': request} AS stratum
  )
  FROM traffic_harm
)
SELECT candidate, stratum, count(*) AS num_requests,
  quantile_disc(harm, 0.99) AS request_p99, max(harm) AS request_max
FROM (
  SELECT candidate, s.stratum.of AS stratum, sum(layer_harm) AS harm
  FROM layer_harm(by_request) AS s
  GROUP BY candidate, s.stratum
)
GROUP BY ALL;

-- What half of the interval of ln(harm / other) is as a factor, paired by
-- group of requests.
CREATE OR REPLACE MACRO harm_factor(harm, without, other, other_without) AS
  exp(CASE WHEN least(harm, other, list_min(without || other_without)) > 0
    THEN jackknife_half_width([
      ln(pair[1] / pair[2]) - ln(harm / other)
      FOR pair IN list_zip(without, other_without)
    ]) END);

-- The tables of a run as views, for every other query. Grain: see each view.
-- By hand: cd RUN && duckdb -init .../queries/views.sql
--
-- A run stores sums and maxima; a fraction is a quotient of sums at whatever
-- grouping a query asks for. What was not measured is NULL or an absent row:
-- an interval whose low or high is NULL rests on too few requests to tell, or
-- the run has no sums to make it of (groups).
-- out of range  |x / scale| > MAX (448 for e4m3fn)
-- clipped       beyond the point where rounding leaves MAX (464): the loss
-- flushed       non-zero, and 0 after the round trip

-- One row per (source, sampling_id).
--   weight  positions of the traffic that one captured row stands for
CREATE OR REPLACE VIEW sampling AS
SELECT source, sampling_id, position_stride, request_fraction,
  position_stride / nullif(request_fraction, 0) AS weight
FROM 'sampling.parquet';

-- One row per (source, request), captured or not.
--   incomplete  not captured in full: some of its positions are missing or
--               were dropped, or its end was not seen (status running)
CREATE OR REPLACE VIEW requests AS
SELECT source, request, workload, client_id, prompt_hash, sampled,
  sampling_id, prompt_tokens, output_tokens, computed_tokens, status,
  num_rows, num_missing, num_dropped,
  num_missing > 0 OR num_dropped > 0 OR status = 'running' AS incomplete
FROM 'requests.parquet';

-- One row per captured token.
CREATE OR REPLACE VIEW rows AS
SELECT source, "row", request, position, position_octave, phase, sampling_id
FROM 'rows.parquet';

-- One row per candidate. A candidate is a set of scales as one engine applies
-- it.
--   kind  bf16       not quantized
--         effective  the scales that the captured engine used
--         unit       every scale 1.0
--         artifact   the scales of a checkpoint or file
--         online     no stored scale: while serving every token's vector of a
--                    head gets one that just covers it. No value is ever out
--                    of range or clipped: those counts are 0 by that rule, and
--                    an interval of them, made of the requests seen, too wide
--   reason_id  which reason the words of `reason` give, such as
--              per-head-refused; NULL where valid
--   calibrated_max_length  positions below this were calibrated on; NULL: not
--                          known
CREATE OR REPLACE VIEW candidates AS
SELECT candidate, ordinal, kind, status, reason, reason_id, hypothetical, engine,
  format, granularity, artifact, artifact_sha256, calibrated_max_length, note
FROM 'candidates.parquet';

-- One row per (source, valid candidate, layer, kv_head, tensor).
--   scale            dequantization multiplier; NULL where not quantized, and
--                    where every token's vector gets its own (kind online)
--   is_quantized     by a scale of its own or by one for every vector; of the
--                    latter no value is out of range or clipped
--   covered_amax     MAX × scale: the largest magnitude in range
--   calibrated_amax  largest magnitude of the calibration, by the artifact's
--                    manifest; NULL without one
CREATE OR REPLACE VIEW scales AS
SELECT source, candidate, layer, kv_head, tensor, scale, covered_amax,
  calibrated_amax, max_in_range_code, max_unclipped_code, origin,
  scale IS NOT NULL OR candidate IN (
    SELECT candidate FROM 'candidates.parquet' WHERE kind = 'online'
  ) AS is_quantized
FROM 'scales.parquet';

-- One row per (source, valid candidate, layer, kv_head, tensor, cell); a cell
-- is workload × phase × position_octave × sampling_id.
CREATE OR REPLACE VIEW cells AS
SELECT source, candidate, layer, kv_head, tensor, workload, phase,
  position_octave, sampling_id, num_vectors, num_values, num_nonfinite,
  num_out_of_range, num_clipped, num_flushed, sum_sq_signal, sum_sq_error,
  sum_sq_clip_error, max_abs
FROM 'cells.parquet';

-- The same sums by group of whole requests, for intervals. One row per
-- (source, valid candidate with static scales, layer, kv_head, tensor,
-- workload, phase, sampling_id, request_group); no rows where the replay was
-- not asked for them (kvtrace replay --intervals) and of online candidates, so
-- that what is made of them (clipped_low, clip_error_high, sqnr_low_db, …) is
-- NULL there.
--   request_group  0 to 15, by a hash of the request's number
CREATE OR REPLACE VIEW groups AS
SELECT source, candidate, layer, kv_head, tensor, workload, phase, sampling_id,
  request_group, num_vectors, num_values, num_out_of_range, num_clipped,
  num_flushed, sum_sq_signal, sum_sq_error, sum_sq_clip_error
FROM 'groups.parquet';

-- How often each magnitude occurs, over all layers and heads. One row per
-- (source, tensor, workload, sampling_id, magnitude); no rows where the replay
-- made no counts.
CREATE OR REPLACE VIEW magnitudes AS
SELECT source, tensor, workload, sampling_id, magnitude, num_values
FROM 'magnitudes.parquet';

-- One row per (source, row, layer, kv_head, tensor): the widest value of one
-- token's vector, as its magnitude code, which orders like the magnitude; NULL
-- where no value is finite, and then in no count of vectors.
CREATE OR REPLACE VIEW vectors AS
SELECT source, "row", layer, kv_head, tensor, absmax_code, has_nonfinite
FROM 'vectors.parquet';

-- One row per (source, candidate, finding): what an audit of the candidate's
-- artifact found. Candidates without an artifact have none.
--   ordinal   order, errors first
--   evidence  JSON object
CREATE OR REPLACE VIEW findings AS
SELECT source, candidate, ordinal, id, severity, message, action, layers,
  evidence
FROM 'findings.parquet';

-- One row per (source, layer, kv_head, tensor, log2_multiple), all cells
-- together: what scales around the one that just covers the head would do. No
-- rows where the replay made no counts, or the head has no value but 0.
--   log2_multiple  k: the scale is 2^k times the one that just covers
--   engine         of the first candidate with static scales; so is format
CREATE OR REPLACE VIEW sweep AS
SELECT source, engine, format, layer, kv_head, tensor, log2_multiple, scale,
  covered_amax, num_values, num_clipped, num_flushed, sum_sq_signal,
  sum_sq_error, sum_sq_clip_error
FROM 'sweep.parquet';

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

-- One row per (source, layer, kv_head, tensor): the largest code that every
-- candidate covers. Codes up to it need not be told apart, which keeps counts
-- by code small.
CREATE OR REPLACE VIEW in_range_codes AS
SELECT source, layer, kv_head, tensor, min(max_in_range_code) AS max_code
FROM scales
GROUP BY source, layer, kv_head, tensor;

-- One row per (source, layer, kv_head, tensor, workload, phase,
-- position_octave, sampling_id, absmax_code): vectors counted by code, to join
-- with scales: out of range where absmax_code > max_in_range_code, clipped
-- where absmax_code > max_unclipped_code. A code that every candidate covers
-- counts as the largest of them.
CREATE OR REPLACE VIEW vector_codes AS
SELECT source, layer, kv_head, tensor, workload, phase, position_octave,
  sampling_id, greatest(absmax_code, max_code) AS absmax_code,
  count(*) AS num_vectors
FROM vectors
  JOIN tokens USING (source, "row")
  JOIN in_range_codes USING (source, layer, kv_head, tensor)
WHERE absmax_code IS NOT NULL
GROUP BY ALL;

-- One row per (source, row, layer, kv_head, tensor, valid candidate) with a
-- clipped value.
CREATE OR REPLACE VIEW clipped_vectors AS
SELECT source, "row", layer, kv_head, tensor, candidate
FROM vectors
  JOIN in_range_codes USING (source, layer, kv_head, tensor)
  JOIN scales USING (source, layer, kv_head, tensor)
WHERE absmax_code > max_code  -- few are, so that few meet every candidate
  AND absmax_code > max_unclipped_code;

-- One row per (source, valid candidate): the traces that it exists in.
CREATE OR REPLACE VIEW candidate_sources AS
SELECT DISTINCT source, candidate
FROM scales;

-- The octave n of positions, 2^n to 2^(n+1) - 1; position 0 counts with 1.
CREATE OR REPLACE MACRO octave_of(place) AS
  floor(log2(greatest(place, 1)))::INTEGER;
CREATE OR REPLACE MACRO octave_from(octave) AS
  CASE WHEN octave = 0 THEN 0 ELSE CAST(pow(2, octave) AS BIGINT) END;
CREATE OR REPLACE MACRO octave_to(octave) AS
  CAST(pow(2, octave + 1) AS BIGINT) - 1;

-- SQNR in dB that rounding alone leaves, for mantissas whose logarithm is
-- uniform: a step of 2^-bits of the binade errs by step² / 12 on average where
-- the engine rounds to nearest, by step² / 3 where it truncates. No scale does
-- better. NULL where the format has no mantissa, as int8.
CREATE OR REPLACE MACRO rounding_floor_db(fp8_format, fp8_engine) AS
  10 * log10(
    3 / (2 * ln(2))
    * CASE WHEN fp8_format = 'e5m2' THEN 16
      WHEN fp8_format IN ('e4m3fn', 'e4m3fnuz') THEN 64 END
    * CASE WHEN fp8_engine = 'vllm-cpu' THEN 3 ELSE 12 END
  );

-- Signal to quantization noise in dB; NULL where nothing was lost.
CREATE OR REPLACE MACRO sqnr_db(sum_sq_signal, sum_sq_error) AS
  10 * log10(nullif(sum_sq_signal, 0) / nullif(sum_sq_error, 0));

-- One row per (source, layer, tensor): the dtype whose codes vectors hold,
-- which a run does not name: the one in which the widest vector's code is the
-- largest magnitude of the cells. NULL where none is.
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
CREATE OR REPLACE VIEW vector_dtypes AS
SELECT source, layer, tensor,
  CASE
    WHEN abs(magnitude(code, 'bfloat16') - amax) <= 1e-6 * amax
      THEN 'bfloat16'
    WHEN abs(magnitude(code, 'float16') - amax) <= 1e-6 * amax
      THEN 'float16'
    WHEN abs(magnitude(code, 'float32') - amax) <= 1e-6 * amax
      THEN 'float32'
  END AS dtype
FROM (
    SELECT source, layer, tensor, max(absmax_code) AS code
    FROM vectors
    GROUP BY source, layer, tensor
  )
  JOIN (
    SELECT source, layer, tensor, max(max_abs) AS amax
    FROM cells
    GROUP BY source, layer, tensor
  ) USING (source, layer, tensor);

-- The share of the beta law of a, b at or below x. Source: the continued
-- fraction of DLMF 8.17.22, from its 40th term inwards.
CREATE OR REPLACE MACRO beta_tail(x, a, b) AS
  exp(
    a * ln(x) + b * ln(1 - x) + lgamma(a + b) - lgamma(a) - lgamma(b)
  ) / a / (1 + list_reduce(
    [0.0::DOUBLE] || [m::DOUBLE FOR m IN range(40, 0, -1)],
    lambda rest, m:
      -(a + m - 1) * (a + b + m - 1) * x
      / ((a + 2 * m - 2) * (a + 2 * m - 1))
      / (1 + m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)) / (1 + rest))
  ));
CREATE OR REPLACE MACRO beta_cdf(x, a, b) AS
  CASE WHEN x <= 0 THEN 0.0 WHEN x >= 1 THEN 1.0
  WHEN x < (a + 1) / (a + b + 2) THEN beta_tail(x, a, b)
  ELSE 1 - beta_tail(1 - x, b, a) END;

-- x at which the beta law of a, b has the share p at or below it, by bisection
-- of its logit.
CREATE OR REPLACE MACRO logistic(y) AS 1 / (1 + exp(-y));
CREATE OR REPLACE MACRO beta_quantile(p, a, b) AS
  logistic(list_reduce(
    [0.0::DOUBLE] || [pow(2.0, 6 - i)::DOUBLE FOR i IN range(36)],
    lambda y, step:
      y + CASE WHEN beta_cdf(logistic(y), a, b) < p THEN step ELSE -step END
  ));

-- a, b of the beta law with the mean and the variance of the fraction whose
-- requests are reweighted by a Dirichlet law, after one was added that has the
-- fraction added_frac and the size Σ n² / Σ n.
CREATE OR REPLACE MACRO beta_of(mean, variance) AS {
  'a': mean * (mean * (1 - mean) / variance - 1),
  'b': (1 - mean) * (mean * (1 - mean) / variance - 1)
};
CREATE OR REPLACE MACRO beta_law(sums, added_frac) AS
  list_transform(
    [{
      'size': sums.nn / sums.n, 'added': added_frac * sums.nn / sums.n,
      'total': sums.n + sums.nn / sums.n,
      'mean': (sums.x + added_frac * sums.nn / sums.n)
        / (sums.n + sums.nn / sums.n)
    }],
    lambda t: beta_of(t.mean,
      (
        sums.xx - 2 * t.mean * sums.xn + t.mean * t.mean * sums.nn
        + (t.added - t.mean * t.size) * (t.added - t.mean * t.size)
      ) / (t.total * t.total) * (sums.requests + 1) / (sums.requests + 2))
  )[1];

-- What fraction_low and fraction_high need of a stratum's requests: an
-- aggregate over rows of (events, trials), one per request, both weighted.
CREATE OR REPLACE MACRO request_sums(events, trials) AS {
  'requests': count(*) FILTER (trials > 0),
  'affected': count(*) FILTER (events > 0),
  'n': sum(trials), 'nn': sum(trials * trials),
  'x': sum(events), 'xx': sum(events * events), 'xn': sum(events * trials),
  'worst': max(events / nullif(trials, 0))
};

-- 95 % interval of Σ events / Σ trials over the traffic, not over this sample
-- alone: requests are what is independent. The method of kvtrace check: the
-- bound of Gaffke (2005), beta-matched, with an adaptive worst request. NULL:
-- fewer than 3 requests say nothing of the low end, fewer than 5 of the high.
CREATE OR REPLACE MACRO fraction_low(sums) AS
  CASE WHEN sums.requests >= 3 AND sums.x <= 0 THEN 0.0
  WHEN sums.requests >= 3 THEN list_transform(
    [beta_law(sums, 0.0)], lambda law: beta_quantile(0.025, law.a, law.b)
  )[1] END;
CREATE OR REPLACE MACRO fraction_high(sums) AS
  CASE WHEN sums.requests >= 5 AND sums.x >= sums.n THEN 1.0
  WHEN sums.requests >= 5 THEN list_transform(
    [beta_law(sums,
      (sums.affected * sums.worst + 1) / (sums.affected + 1))],
    lambda law: beta_quantile(0.975, law.a, law.b)
  )[1] END;

-- 95 % interval of Σ numerators / Σ denominators, each a list of one sum per
-- request group: the delete-a-group jackknife on the logarithm, with the t law
-- of G - 1 degrees of freedom. NULL: fewer than 8 groups have a denominator,
-- or fewer than three quarters of these a numerator: too few to tell.
CREATE OR REPLACE MACRO log_half_width(numerators, denominators) AS
  list_transform(
    [{
      'above': list_sum(numerators), 'below': list_sum(denominators),
      'used': len([d FOR d IN denominators IF d > 0]),
      'hit': len([n FOR n IN numerators IF n > 0]),
      'pairs': list_zip(numerators, denominators)
    }],
    lambda t:
      CASE WHEN t.used >= 8 AND t.hit >= 0.75 * t.used THEN
        -- Student's t at 0.975 for 7 to 15 degrees of freedom.
        [
          2.364624251592784, 2.306004135204166, 2.262157162798205,
          2.228138851986274, 2.200985160091639, 2.1788128296672284,
          2.1603686564627913, 2.144786687917804, 2.131449545559776
        ][t.used - 7] * sqrt((t.used - 1) / t.used * list_sum([
          pow(
            ln((t.above - pair[1]) / (t.below - pair[2]))
              - ln(t.above / t.below), 2
          )
          FOR pair IN t.pairs IF pair[2] > 0
        ]))
      END
  )[1];
CREATE OR REPLACE MACRO ratio_low(numerators, denominators) AS
  list_sum(numerators) / list_sum(denominators)
  * exp(-log_half_width(numerators, denominators));
CREATE OR REPLACE MACRO ratio_high(numerators, denominators) AS
  list_sum(numerators) / list_sum(denominators)
  * exp(log_half_width(numerators, denominators));

-- The logarithm of the number of ways to choose some of a total.
CREATE OR REPLACE MACRO log_choose(total, chosen) AS
  lgamma(total + 1) - lgamma(chosen + 1) - lgamma(total - chosen + 1);

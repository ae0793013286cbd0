-- The tables of a run as views, for every other query. Grain: see each view.
-- By hand: cd RUN && duckdb -init .../queries/views.sql
--
-- A run stores sums and maxima; a fraction is a quotient of sums at whatever
-- grouping a query asks for. What was not measured is NULL or an absent row.
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
CREATE OR REPLACE VIEW requests AS
SELECT source, request, workload, client_id, prompt_hash, sampled,
  sampling_id, prompt_tokens, output_tokens, computed_tokens, status,
  num_rows, num_missing, num_dropped
FROM 'requests.parquet';

-- One row per captured token.
CREATE OR REPLACE VIEW rows AS
SELECT source, "row", request, position, position_octave, phase, sampling_id
FROM 'rows.parquet';

-- One row per candidate. A candidate is a set of scales as one engine applies
-- it.
CREATE OR REPLACE VIEW candidates AS
SELECT candidate, ordinal, kind, status, reason, hypothetical, engine, format,
  granularity, artifact, artifact_sha256, note
FROM 'candidates.parquet';

-- One row per (source, valid candidate, layer, kv_head, tensor).
--   scale         dequantization multiplier; NULL where not quantized
--   covered_amax  MAX × scale: the largest magnitude in range
CREATE OR REPLACE VIEW scales AS
SELECT source, candidate, layer, kv_head, tensor, scale, covered_amax,
  max_in_range_code, max_unclipped_code, origin
FROM 'scales.parquet';

-- One row per (source, valid candidate, layer, kv_head, tensor, cell); a cell
-- is workload × phase × position_octave × sampling_id.
CREATE OR REPLACE VIEW cells AS
SELECT source, candidate, layer, kv_head, tensor, workload, phase,
  position_octave, sampling_id, num_vectors, num_values, num_nonfinite,
  num_out_of_range, num_clipped, num_flushed, sum_sq_signal, sum_sq_error,
  sum_sq_clip_error, max_abs
FROM 'cells.parquet';

-- One row per (source, row, layer, kv_head, tensor): the widest value of one
-- token's vector, as its magnitude code, which orders like the magnitude; NULL
-- where no value is finite, and then in no count of vectors.
CREATE OR REPLACE VIEW vectors AS
SELECT source, "row", layer, kv_head, tensor, absmax_code, has_nonfinite
FROM 'vectors.parquet';

-- One row per (source, layer, kv_head, tensor, workload, phase,
-- position_octave, sampling_id, absmax_code): vectors counted by code, to join
-- with scales: out of range where absmax_code > max_in_range_code, clipped
-- where absmax_code > max_unclipped_code. Codes that every candidate covers
-- count as the largest of them, which keeps this small.
CREATE OR REPLACE VIEW vector_codes AS
SELECT source, layer, kv_head, tensor, workload, phase, position_octave,
  strata.sampling_id, greatest(absmax_code, max_code) AS absmax_code,
  count(*) AS num_vectors
FROM vectors
  JOIN (
    SELECT source, "row", workload, phase, position_octave,
      rows.sampling_id
    FROM rows JOIN requests USING (source, request)
  ) AS strata USING (source, "row")
  JOIN (
    SELECT source, layer, kv_head, tensor,
      min(max_in_range_code) AS max_code
    FROM scales
    GROUP BY source, layer, kv_head, tensor
  ) AS in_range USING (source, layer, kv_head, tensor)
WHERE absmax_code IS NOT NULL
GROUP BY ALL;

-- The octave n of positions as people read it: 2^n to 2^(n+1) - 1.
CREATE OR REPLACE MACRO octave_from(octave) AS
  CASE WHEN octave = 0 THEN 0 ELSE CAST(pow(2, octave) AS BIGINT) END;
CREATE OR REPLACE MACRO octave_to(octave) AS
  CAST(pow(2, octave + 1) AS BIGINT) - 1;

-- Signal to quantization noise in dB; NULL where nothing was lost.
CREATE OR REPLACE MACRO sqnr_db(sum_sq_signal, sum_sq_error) AS
  10 * log10(nullif(sum_sq_signal, 0) / nullif(sum_sq_error, 0));

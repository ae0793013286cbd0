-- The tables of a run as views, for every other query. Grain: see each view.
-- By hand: cd RUN && duckdb -init .../queries/views.sql
--
-- Only these views know how a run is stored; measures.sql and all queries ask
-- them. A run stores sums and maxima; a fraction is a quotient of sums at
-- whatever grouping a query asks for. What was not measured is NULL or an
-- absent row. A view has the columns of its file, which the documentation of a
-- run's tables explains (kvtrace/runs/schema.py), and those it adds.
-- out of range  |x / scale| > MAX (448 for e4m3fn)
-- clipped       beyond the point where rounding leaves MAX (464): the loss
-- flushed       non-zero, and 0 after the round trip

-- One row per (source, sampling_id).
--   weight  positions of the traffic that one captured row stands for
CREATE OR REPLACE VIEW sampling AS
SELECT *, position_stride / nullif(request_fraction, 0) AS weight
FROM 'sampling.parquet';

-- One row per (source, request), captured or not.
--   incomplete  not captured in full: some of its positions are missing or
--               were dropped, or its end was not seen (status running)
CREATE OR REPLACE VIEW requests AS
SELECT *,
  num_missing > 0 OR num_dropped > 0 OR status = 'running' AS incomplete
FROM 'requests.parquet';

-- One row per (source, captured layer). No rows in a run of before 1.2.
--   dtype           of the captured K and V: bfloat16, float16 or float32
--   kv_cache_dtype  as the engine resolved it; auto: that of the model, no FP8
--   num_kv_heads    KV heads captured, over all ranks
--   residual_weight  mean of ‖W_O o‖² / ‖h‖², o the attention's output and h
--                   the residual stream after it; NULL: not measured
CREATE OR REPLACE VIEW layers AS FROM 'layers.parquet';

-- One row per captured token.
CREATE OR REPLACE VIEW rows AS FROM 'rows.parquet';

-- One row per candidate. A candidate is a set of scales as one engine applies
-- it.
--   kind  bf16       not quantized
--         effective  the scales that the captured engine used
--         unit       every scale 1.0
--         artifact   the scales of a checkpoint or file
--         swept      static scales by a common rule, made of these very traces
--         fresh      static scales that just cover each trace; there are some
--                    where a trace has queries
--         online     no stored scale: while serving every token's vector of a
--                    head gets its own. But for K of turboquant_k8v4 no value
--                    is ever out of range or clipped: counts of vectors are 0
--                    by that rule, and an interval of them, made of the
--                    requests seen, too wide; counts of values are NULL
--         format     another cache format over stored scales, or K and V in
--                    different ones; counts of values are NULL where nothing
--                    can be out of range
--   reason_id  which reason the words of `reason` give, such as
--              per-head-refused; NULL where valid
--   calibrated_max_length  positions below this were calibrated on; NULL: not
--                          known
--   rounding_floor_db      SQNR in dB that rounding alone leaves: no scale
--                          does better; NULL: nothing is rounded to a float
--                          format (bf16, int8), or a run of before 1.2
CREATE OR REPLACE VIEW candidates AS FROM 'candidates.parquet';

-- One row per (source, valid candidate, layer, kv_head, tensor).
--   scale            dequantization multiplier; NULL where not quantized, and
--                    where every token's vector gets its own (kind online)
--   is_quantized     by a scale of its own or by those of every vector; of the
--                    latter no value is out of range or clipped, unless they
--                    have a covered_amax
--   covered_amax     MAX × scale: the largest magnitude in range
--   calibrated_amax  largest magnitude of the calibration, by the artifact's
--                    manifest; NULL without one
CREATE OR REPLACE VIEW scales AS
SELECT *, scale IS NOT NULL OR (
    origin NOT IN ('skipped', 'unquantized') AND candidate IN (
      SELECT candidate FROM 'candidates.parquet'
      WHERE kind IN ('online', 'format')
    )
  ) AS is_quantized
FROM 'scales.parquet';

-- One row per (source, valid candidate, layer, kv_head, tensor, cell); a cell
-- is workload × phase × position_octave × sampling_id.
CREATE OR REPLACE VIEW cells AS FROM 'cells.parquet';

-- The same sums by group of whole requests, for intervals. One row per
-- (source, valid candidate with static scales, layer, kv_head, tensor,
-- workload, phase, sampling_id, request_group); no rows where the replay was
-- not asked for them (kvtrace replay --intervals) and of the kinds online and
-- format, so that what is made of them (clipped_low, clip_error_high,
-- sqnr_low_db, …) is NULL there.
--   request_group  0 to 15, by a hash of the request's number
CREATE OR REPLACE VIEW groups AS FROM 'groups.parquet';

-- How often each magnitude occurs, over all layers and heads. One row per
-- (source, tensor, workload, sampling_id, magnitude); no rows where the replay
-- made no counts.
CREATE OR REPLACE VIEW magnitudes AS FROM 'magnitudes.parquet';

-- Sums over the ordinary channels of KV heads in which a few others, the
-- outliers, hold most of Σ x². One row per (source, valid candidate with
-- static scales, layer, kv_head, tensor, workload, sampling_id); no rows of
-- other heads, and none where the replay made no counts or is of before 1.3.
--   channel_count  ordinary channels of the head
CREATE OR REPLACE VIEW ordinary_channels AS FROM 'ordinary_channels.parquet';

-- One row per (source, row, layer, kv_head, tensor): the widest value of one
-- token's vector, as its magnitude code, which orders like the magnitude; NULL
-- where no value is finite, and then in no count of vectors.
CREATE OR REPLACE VIEW vectors AS FROM 'vectors.parquet';

-- One row per (source, candidate, finding): what an audit of the candidate's
-- artifact found. Candidates without an artifact have none.
--   ordinal   order, errors first
--   layers    list of the layers concerned; NULL: the artifact as a whole
--   evidence  JSON object of the numbers that settle it; NULL: it is none
CREATE OR REPLACE VIEW findings AS
SELECT * REPLACE (try_cast(evidence AS JSON) AS evidence)
FROM 'findings.parquet';

-- One row per (source, layer, kv_head, tensor, log2_multiple), all cells
-- together: what scales around the one that just covers the head would do. No
-- rows where the replay made no counts, or the head has no value but 0.
--   log2_multiple  k: the scale is 2^k times the one that just covers
--   engine         of the first candidate with static scales; so is format
CREATE OR REPLACE VIEW sweep AS FROM 'sweep.parquet';

-- What candidates do to attention, replayed at the captured queries. One row
-- per (source, valid candidate, layer, query_head, request, place), a place
-- being phase × position_octave × step_octave; no rows of a trace without
-- queries. o is the output of exact K, V and Q, Δo the candidate's less o.
--   step_octave  n: generated tokens 2^n to 2^(n+1) - 1, counted from 1; -1:
--                tokens of the prompt
--   is_dense     every key was there; else attention is over those that were
CREATE OR REPLACE VIEW attention AS FROM 'attention.parquet';

-- The same over all query heads, through the layer's output projection W_O.
-- One row per (source, valid candidate, layer, request, place); no rows where
-- no checkpoint was given.
CREATE OR REPLACE VIEW attention_layers AS FROM 'attention_layers.parquet';

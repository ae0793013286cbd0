-- Each head in each workload and at each position, with what intervals need.
-- Grain: one row per (candidate, tensor) and head, head × workload, head ×
-- phase × octave, or phase × octave of all heads together; NULL means all.
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/head_strata.sql
--
-- The charts of the HTML report are made from this. A vector is one token's
-- values of one head; the sums over requests of its events are those that
-- kvtrace.stats.RequestSums names, weighted by what a row was sampled from.
--
-- Parameters
--   candidate  candidate; all  this one alone
--   tensor     k or v; both    this tensor alone
--   layer      layer; all      this layer alone
--   kv_head    KV head; all    this KV head alone
--   source     trace; all      this trace alone
--
-- Columns
--   candidate                    the candidate's name
--   tensor                       k or v
--   layer                        layer index; NULL: all heads together
--   kv_head                      global KV-head index; NULL: all heads
--   workload                     the client's label; NULL: all workloads
--   phase                        prefill or decode; NULL: all positions
--   position_octave              positions 2^n to 2^(n+1) - 1; NULL: all
--   out_of_range_frac            share of values out of range, 0 to 1
--   clipped_frac                 share of values clipped, 0 to 1
--   flushed_frac                 share of values flushed to 0, 0 to 1
--   clip_error_frac              share of the squared error due to clipping
--   sqnr_db                      signal to noise, dB, higher is better
--   max_abs                      largest finite magnitude
--   num_requests                 requests with a vector here
--   num_vectors                  vectors with a finite value
--   num_vectors_out_of_range     vectors
--   num_vectors_clipped          vectors
--   sum_trials                   vectors, weighted
--   sum_trials_sq                sum over requests of weighted vectors²
--   num_affected_out_of_range    requests with such a vector
--   sum_out_of_range             vectors out of range, weighted
--   sum_out_of_range_sq          sum over requests of its square
--   sum_out_of_range_trials      sum over requests of it × weighted vectors
--   max_request_out_of_range     its largest share of one request's vectors
--   num_affected_clipped         requests with a clipped vector
--   sum_clipped                  clipped vectors, weighted
--   sum_clipped_sq               sum over requests of its square
--   sum_clipped_trials           sum over requests of it × weighted vectors
--   max_request_clipped          its largest share of one request's vectors
WITH of_request AS (
  SELECT source, request, tensor,
    stratum_of(layer, kv_head, workload, phase, position_octave) AS stratum,
    count(*) AS num_vectors,
    sum(weight) AS n
  FROM chosen_vectors JOIN chosen_tokens USING (source, "row")
  WHERE absmax_code IS NOT NULL
  GROUP BY source, request, tensor, GROUPING SETS (
    (layer, kv_head), (layer, kv_head, workload),
    (layer, kv_head, phase, position_octave), (phase, position_octave)
  )
),
beyond AS (
  SELECT candidate, source, request, tensor,
    stratum_of(layer, kv_head, workload, phase, position_octave) AS stratum,
    count(*) AS num_vectors_out_of_range,
    count(*) FILTER (is_clipped) AS num_vectors_clipped,
    sum(weight) AS out_of_range,
    coalesce(sum(weight) FILTER (is_clipped), 0) AS clipped
  FROM vectors_out_of_range JOIN chosen_tokens USING (source, "row")
  GROUP BY candidate, source, request, tensor, GROUPING SETS (
    (layer, kv_head), (layer, kv_head, workload),
    (layer, kv_head, phase, position_octave), (phase, position_octave)
  )
),
trials AS (
  SELECT candidate, tensor, stratum,
    count(*) AS num_requests,
    sum(num_vectors)::BIGINT AS num_vectors,
    sum(n) AS sum_trials,
    sum(n * n) AS sum_trials_sq
  FROM of_request JOIN candidate_sources USING (source)
  GROUP BY candidate, tensor, stratum
),
affected AS (
  SELECT * EXCLUDE (num_vectors)
  FROM beyond JOIN of_request USING (source, request, tensor, stratum)
),
value_sums AS (
  SELECT candidate, tensor,
    stratum_of(layer, kv_head, workload, phase, position_octave) AS stratum,
    sum(weight * COLUMNS('^num_(.*)')) AS "w_\1",
    sum(weight * COLUMNS('^sum_(.*)')) AS "w_\1",
    max(max_abs) AS max_abs
  FROM chosen_cells JOIN sampling USING (source, sampling_id)
  GROUP BY candidate, tensor, GROUPING SETS (
    (layer, kv_head), (layer, kv_head, workload),
    (layer, kv_head, phase, position_octave), (phase, position_octave)
  )
)
SELECT candidate, tensor, stratum.layer, stratum.kv_head, stratum.workload,
  stratum.phase, stratum.octave AS position_octave,
  share(COLUMNS('^w_(out_of_range|clipped|flushed)$'), w_values) AS "\1_frac",
  share(w_sq_clip_error, w_sq_error) AS clip_error_frac,
  sqnr_db(w_sq_signal, w_sq_error) AS sqnr_db,
  max_abs, v.num_requests, num_vectors,
  coalesce(COLUMNS('^num_vectors_'), 0) AS "\0",
  v.sum_trials, v.sum_trials_sq,
  coalesce(COLUMNS('^(num_affected|sum|max_request)_out'), 0) AS "\0",
  coalesce(COLUMNS('^(num_affected|sum|max_request)_clipped'), 0) AS "\0"
FROM value_sums
  JOIN quantizing USING (candidate)
  LEFT JOIN trials AS v USING (candidate, tensor, stratum)
  LEFT JOIN request_columns(affected) USING (candidate, tensor, stratum)
ORDER BY ordinal, tensor, stratum.layer NULLS FIRST, stratum.kv_head,
  stratum.workload NULLS FIRST, stratum.phase DESC NULLS FIRST,
  position_octave;

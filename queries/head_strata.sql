-- Each head in each workload and at each position, with what intervals need.
-- Grain: one row per (candidate, tensor) and head, head × workload, head ×
-- phase × octave, or phase × octave of all heads together; NULL means all.
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -f .../queries/head_strata.sql
--
-- The charts of the HTML report are made from this. A vector is one token's
-- values of one head; the sums over requests of its events are those that
-- kvtrace.stats.RequestSums names, weighted by what a row was sampled from.
--
-- Parameters
--   candidate  this candidate alone; all
--   tensor     k or v alone; both
--   layer      this layer alone; all
--   kv_head    this KV head alone; all
--   source     this trace alone; all
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
WITH tokens AS (
  SELECT rows.source, rows."row", rows.request, workload, phase,
    position_octave, weight
  FROM rows
    JOIN requests USING (source, request)
    JOIN sampling
      ON sampling.source = rows.source
      AND sampling.sampling_id = rows.sampling_id
),
of_request AS (
  SELECT source, request, tensor, layer, kv_head, workload, phase,
    position_octave,
    count(*) AS num_vectors,
    sum(weight) AS n
  FROM vectors JOIN tokens USING (source, "row")
  WHERE absmax_code IS NOT NULL
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND layer = coalesce(getvariable('layer')::INTEGER, layer)
    AND kv_head = coalesce(getvariable('kv_head')::INTEGER, kv_head)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY GROUPING SETS (
    (source, request, tensor, layer, kv_head),
    (source, request, tensor, layer, kv_head, workload),
    (source, request, tensor, layer, kv_head, phase, position_octave),
    (source, request, tensor, phase, position_octave)
  )
),
beyond AS (
  SELECT candidate, source, request, tensor, layer, kv_head, workload, phase,
    position_octave,
    count(*) AS num_out_of_range,
    count(*) FILTER (absmax_code > max_unclipped_code) AS num_clipped,
    sum(weight) AS out_of_range,
    coalesce(sum(weight) FILTER (absmax_code > max_unclipped_code), 0)
      AS clipped
  FROM vectors
    JOIN scales USING (source, layer, kv_head, tensor)
    JOIN tokens USING (source, "row")
  WHERE absmax_code > max_in_range_code
    AND candidate = coalesce(getvariable('candidate')::VARCHAR, candidate)
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND layer = coalesce(getvariable('layer')::INTEGER, layer)
    AND kv_head = coalesce(getvariable('kv_head')::INTEGER, kv_head)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY GROUPING SETS (
    (candidate, source, request, tensor, layer, kv_head),
    (candidate, source, request, tensor, layer, kv_head, workload),
    (candidate, source, request, tensor, layer, kv_head, phase,
      position_octave),
    (candidate, source, request, tensor, phase, position_octave)
  )
),
trials AS (
  SELECT tensor, layer, kv_head, workload, phase, position_octave,
    count(*) AS num_requests,
    sum(num_vectors)::BIGINT AS num_vectors,
    sum(n) AS sum_trials,
    sum(n * n) AS sum_trials_sq
  FROM of_request
  GROUP BY tensor, layer, kv_head, workload, phase, position_octave
),
events AS (
  SELECT candidate, x.tensor, x.layer, x.kv_head, x.workload, x.phase,
    x.position_octave,
    sum(num_out_of_range)::BIGINT AS num_vectors_out_of_range,
    sum(num_clipped)::BIGINT AS num_vectors_clipped,
    count(*) AS num_affected_out_of_range,
    sum(out_of_range) AS sum_out_of_range,
    sum(out_of_range * out_of_range) AS sum_out_of_range_sq,
    sum(out_of_range * n) AS sum_out_of_range_trials,
    max(out_of_range / n) AS max_request_out_of_range,
    count(*) FILTER (clipped > 0) AS num_affected_clipped,
    sum(clipped) AS sum_clipped,
    sum(clipped * clipped) AS sum_clipped_sq,
    sum(clipped * n) AS sum_clipped_trials,
    max(clipped / n) AS max_request_clipped
  FROM beyond AS x
    JOIN of_request AS r
      ON x.source = r.source
      AND x.request = r.request
      AND x.tensor = r.tensor
      AND x.layer IS NOT DISTINCT FROM r.layer
      AND x.kv_head IS NOT DISTINCT FROM r.kv_head
      AND x.workload IS NOT DISTINCT FROM r.workload
      AND x.phase IS NOT DISTINCT FROM r.phase
      AND x.position_octave IS NOT DISTINCT FROM r.position_octave
  GROUP BY candidate, x.tensor, x.layer, x.kv_head, x.workload, x.phase,
    x.position_octave
),
value_sums AS (
  SELECT candidate, tensor, layer, kv_head, workload, phase, position_octave,
    sum(weight * num_values) AS w_values,
    sum(weight * num_out_of_range) AS w_out_of_range,
    sum(weight * num_clipped) AS w_clipped,
    sum(weight * num_flushed) AS w_flushed,
    sum(weight * sum_sq_signal) AS w_sq_signal,
    sum(weight * sum_sq_error) AS w_sq_error,
    sum(weight * sum_sq_clip_error) AS w_sq_clip_error,
    max(max_abs) AS max_abs
  FROM cells JOIN sampling USING (source, sampling_id)
  WHERE candidate = coalesce(getvariable('candidate')::VARCHAR, candidate)
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND layer = coalesce(getvariable('layer')::INTEGER, layer)
    AND kv_head = coalesce(getvariable('kv_head')::INTEGER, kv_head)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY GROUPING SETS (
    (candidate, tensor, layer, kv_head),
    (candidate, tensor, layer, kv_head, workload),
    (candidate, tensor, layer, kv_head, phase, position_octave),
    (candidate, tensor, phase, position_octave)
  )
)
SELECT c.candidate, c.tensor, c.layer, c.kv_head, c.workload, c.phase,
  c.position_octave,
  w_out_of_range / nullif(w_values, 0) AS out_of_range_frac,
  w_clipped / nullif(w_values, 0) AS clipped_frac,
  w_flushed / nullif(w_values, 0) AS flushed_frac,
  w_sq_clip_error / nullif(w_sq_error, 0) AS clip_error_frac,
  sqnr_db(w_sq_signal, w_sq_error) AS sqnr_db,
  max_abs, num_requests, num_vectors,
  coalesce(num_vectors_out_of_range, 0) AS num_vectors_out_of_range,
  coalesce(num_vectors_clipped, 0) AS num_vectors_clipped,
  sum_trials, sum_trials_sq,
  coalesce(num_affected_out_of_range, 0) AS num_affected_out_of_range,
  coalesce(sum_out_of_range, 0) AS sum_out_of_range,
  coalesce(sum_out_of_range_sq, 0) AS sum_out_of_range_sq,
  coalesce(sum_out_of_range_trials, 0) AS sum_out_of_range_trials,
  coalesce(max_request_out_of_range, 0) AS max_request_out_of_range,
  coalesce(num_affected_clipped, 0) AS num_affected_clipped,
  coalesce(sum_clipped, 0) AS sum_clipped,
  coalesce(sum_clipped_sq, 0) AS sum_clipped_sq,
  coalesce(sum_clipped_trials, 0) AS sum_clipped_trials,
  coalesce(max_request_clipped, 0) AS max_request_clipped
FROM value_sums AS c
  JOIN candidates USING (candidate)
  LEFT JOIN trials AS t
    ON c.tensor = t.tensor
    AND c.layer IS NOT DISTINCT FROM t.layer
    AND c.kv_head IS NOT DISTINCT FROM t.kv_head
    AND c.workload IS NOT DISTINCT FROM t.workload
    AND c.phase IS NOT DISTINCT FROM t.phase
    AND c.position_octave IS NOT DISTINCT FROM t.position_octave
  LEFT JOIN events AS e
    ON c.candidate = e.candidate
    AND c.tensor = e.tensor
    AND c.layer IS NOT DISTINCT FROM e.layer
    AND c.kv_head IS NOT DISTINCT FROM e.kv_head
    AND c.workload IS NOT DISTINCT FROM e.workload
    AND c.phase IS NOT DISTINCT FROM e.phase
    AND c.position_octave IS NOT DISTINCT FROM e.position_octave
WHERE kind <> 'bf16'
ORDER BY ordinal, c.tensor, c.layer NULLS FIRST, c.kv_head,
  c.workload NULLS FIRST, c.phase DESC NULLS FIRST, c.position_octave;

-- Candidates against a baseline, head by head; what gets worse comes first.
-- Grain: one row per (candidate, tensor, layer, kv_head), the worst changes of
-- each candidate and tensor.
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -f .../queries/paired_candidates.sql
--
-- Both columns of a row are of the same captured values, so the difference has
-- no sampling noise of its own; traces that lack one of the two are left out.
-- Heads that got worse are listed however much the others improved.
--
-- Parameters
--   baseline   a candidate's name; the effective scales, else the first one
--              that quantizes
--   candidate  this candidate alone; all but the baseline
--   margin_db  a smaller loss is no regression, dB; 0.1
--   top        heads shown per candidate and tensor; 10
--   tensor     k or v alone; both
--   workload   this workload alone; all
--   source     this trace alone; all
--
-- Columns
--   candidate              the candidate's name
--   baseline               what it is compared with
--   tensor                 k or v
--   layer                  layer index
--   kv_head                global KV-head index
--   regression             whether sqnr_db fell by more than margin_db
--   sqnr_change_db         candidate - baseline; below 0 is worse
--   sqnr_db                of the candidate
--   baseline_sqnr_db       of the baseline
--   clipped_frac_change    candidate - baseline; above 0 is worse
--   clipped_frac           of the candidate, 0 to 1
--   baseline_clipped_frac  of the baseline, 0 to 1
--   num_values             finite values
--   num_clipped            values, candidate
--   num_baseline_clipped   values, baseline
--   num_heads              heads compared, of this candidate and tensor
--   num_heads_regressed    of them, regressions
--   mean_sqnr_change_db    over them
--   sqnr_change_low_db     95 % interval of sqnr_change_db over requests,
--                          paired; NULL: too few request groups, or a run
--                          without them (kvtrace replay --intervals);
--                          always for kind online
--   sqnr_change_high_db    its upper end
WITH chosen AS (
  SELECT candidate AS baseline
  FROM candidates
  WHERE status = 'valid'
    AND kind <> 'bf16'
    AND candidate = coalesce(getvariable('baseline')::VARCHAR, candidate)
  ORDER BY (kind = 'effective') DESC, ordinal
  LIMIT 1
),
heads AS (
  SELECT source, candidate, tensor, layer, kv_head,
    sum(num_values)::BIGINT AS num_values,
    sum(num_clipped)::BIGINT AS num_clipped,
    sum(weight * num_values) AS w_values,
    sum(weight * num_clipped) AS w_clipped,
    sum(weight * sum_sq_signal) AS w_sq_signal,
    sum(weight * sum_sq_error) AS w_sq_error
  FROM cells JOIN sampling USING (source, sampling_id)
  WHERE tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY source, candidate, tensor, layer, kv_head
),
pairs AS (
  SELECT c.candidate, baseline, c.tensor, c.layer, c.kv_head,
    sqnr_db(sum(c.w_sq_signal), sum(c.w_sq_error)) AS sqnr_db,
    sqnr_db(sum(b.w_sq_signal), sum(b.w_sq_error)) AS baseline_sqnr_db,
    sum(c.w_clipped) / nullif(sum(c.w_values), 0) AS clipped_frac,
    sum(b.w_clipped) / nullif(sum(b.w_values), 0) AS baseline_clipped_frac,
    sum(c.num_values)::BIGINT AS num_values,
    sum(c.num_clipped)::BIGINT AS num_clipped,
    sum(b.num_clipped)::BIGINT AS num_baseline_clipped
  FROM heads AS c
    CROSS JOIN chosen
    JOIN heads AS b
      ON b.source = c.source
      AND b.candidate = chosen.baseline
      AND b.tensor = c.tensor
      AND b.layer = c.layer
      AND b.kv_head = c.kv_head
  WHERE c.candidate <> baseline
    AND c.candidate
      = coalesce(getvariable('candidate')::VARCHAR, c.candidate)
  GROUP BY c.candidate, baseline, c.tensor, c.layer, c.kv_head
),
changes AS (
  SELECT *, sqnr_db - baseline_sqnr_db AS sqnr_change_db,
    clipped_frac - baseline_clipped_frac AS clipped_frac_change,
    sqnr_db - baseline_sqnr_db
      < -coalesce(getvariable('margin_db')::DOUBLE, 0.1) AS regression
  FROM pairs JOIN candidates USING (candidate)
  WHERE kind <> 'bf16'
),
shown AS MATERIALIZED (
  SELECT *,
    count(*) OVER same AS num_heads,
    count(*) FILTER (regression) OVER same AS num_heads_regressed,
    avg(sqnr_change_db) OVER same AS mean_sqnr_change_db
  FROM changes
  WINDOW same AS (PARTITION BY candidate, tensor)
  QUALIFY row_number() OVER (
      PARTITION BY candidate, tensor
      ORDER BY sqnr_change_db NULLS LAST, layer, kv_head
    ) <= coalesce(getvariable('top')::INTEGER, 10)
),
-- The error of both in each request group, for the interval.
grouped AS (
  SELECT source, candidate, tensor, layer, kv_head, request_group,
    sum(weight * sum_sq_error) AS w_sq_error
  FROM groups JOIN sampling USING (source, sampling_id)
  WHERE workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY ALL
),
paired_groups AS (
  SELECT c.candidate, c.tensor, c.layer, c.kv_head, c.request_group,
    sum(c.w_sq_error) AS here, sum(b.w_sq_error) AS there
  FROM grouped AS c
    SEMI JOIN shown USING (candidate, tensor, layer, kv_head)
    CROSS JOIN chosen
    JOIN grouped AS b
      ON b.source = c.source
      AND b.candidate = chosen.baseline
      AND b.tensor = c.tensor
      AND b.layer = c.layer
      AND b.kv_head = c.kv_head
      AND b.request_group = c.request_group
  GROUP BY ALL
),
group_lists AS (
  SELECT candidate, tensor, layer, kv_head,
    list(here ORDER BY request_group) AS g_here,
    list(there ORDER BY request_group) AS g_there
  FROM paired_groups
  GROUP BY candidate, tensor, layer, kv_head
)
SELECT candidate, baseline, tensor, layer, kv_head, regression,
  sqnr_change_db, sqnr_db, baseline_sqnr_db, clipped_frac_change,
  clipped_frac, baseline_clipped_frac, num_values, num_clipped,
  num_baseline_clipped, num_heads, num_heads_regressed,
  mean_sqnr_change_db,
  sqnr_db(ratio_low(g_there, g_here), 1) AS sqnr_change_low_db,
  sqnr_db(ratio_high(g_there, g_here), 1) AS sqnr_change_high_db
FROM shown LEFT JOIN group_lists USING (candidate, tensor, layer, kv_head)
ORDER BY ordinal, tensor, sqnr_change_db NULLS LAST, layer, kv_head;

-- Candidates against a baseline, head by head; what gets worse comes first.
-- Grain: one row per (candidate, tensor, layer, kv_head), the worst changes of
-- each candidate and tensor.
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -f .../queries/paired_candidates.sql
--
-- Both columns of a row are of the same captured values, so the difference has
-- no sampling noise of its own. Heads that got worse are listed however much
-- the others improved.
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
  SELECT candidate, tensor, layer, kv_head,
    sum(num_values)::BIGINT AS num_values,
    sum(num_clipped)::BIGINT AS num_clipped,
    sum(weight * num_clipped) / nullif(sum(weight * num_values), 0)
      AS clipped_frac,
    sqnr_db(sum(weight * sum_sq_signal), sum(weight * sum_sq_error))
      AS sqnr_db
  FROM cells JOIN sampling USING (source, sampling_id)
  WHERE tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY candidate, tensor, layer, kv_head
),
pairs AS (
  SELECT ordinal, c.candidate, baseline, c.tensor, c.layer, c.kv_head,
    c.sqnr_db - b.sqnr_db AS sqnr_change_db, c.sqnr_db,
    b.sqnr_db AS baseline_sqnr_db,
    c.clipped_frac - b.clipped_frac AS clipped_frac_change, c.clipped_frac,
    b.clipped_frac AS baseline_clipped_frac, c.num_values, c.num_clipped,
    b.num_clipped AS num_baseline_clipped,
    c.sqnr_db - b.sqnr_db
      < -coalesce(getvariable('margin_db')::DOUBLE, 0.1) AS regression
  FROM heads AS c
    JOIN candidates USING (candidate)
    CROSS JOIN chosen
    JOIN heads AS b
      ON b.candidate = chosen.baseline
      AND b.tensor = c.tensor
      AND b.layer = c.layer
      AND b.kv_head = c.kv_head
  WHERE kind <> 'bf16'
    AND c.candidate <> baseline
    AND c.candidate
      = coalesce(getvariable('candidate')::VARCHAR, c.candidate)
)
SELECT candidate, baseline, tensor, layer, kv_head, regression,
  sqnr_change_db, sqnr_db, baseline_sqnr_db, clipped_frac_change,
  clipped_frac, baseline_clipped_frac, num_values, num_clipped,
  num_baseline_clipped,
  count(*) OVER same AS num_heads,
  count(*) FILTER (regression) OVER same AS num_heads_regressed,
  avg(sqnr_change_db) OVER same AS mean_sqnr_change_db
FROM pairs
WINDOW same AS (PARTITION BY candidate, tensor)
QUALIFY row_number() OVER (
    PARTITION BY candidate, tensor
    ORDER BY sqnr_change_db NULLS LAST, layer, kv_head
  ) <= coalesce(getvariable('top')::INTEGER, 10)
ORDER BY ordinal, tensor, sqnr_change_db NULLS LAST, layer, kv_head;

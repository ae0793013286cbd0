-- Candidates against a baseline, head by head; what loses comes first.
-- Grain: one row per (candidate, tensor, layer, kv_head), the largest losses
-- of each candidate and tensor.
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/paired_candidates.sql
--
-- Both columns of a row are of the same captured values, so the difference has
-- no sampling noise of its own; traces that lack one of the two are left out.
-- Heads that got worse are listed however much the others improved.
--
-- Parameters
--   baseline   quantizing candidate     what the others are compared with; the
--                                       effective scales, else the first one
--                                       that quantizes
--   candidate  candidate; all           this one alone; else all but the
--                                       baseline
--   margin_db  number from 0; 0.1       a smaller loss is no regression, dB
--   top        whole number from 1; 10  heads shown per candidate and tensor
--   tensor     k or v; both             this tensor alone
--   workload   workload; all            this workload alone
--   source     trace; all               this trace alone
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
  FROM quantizing
  WHERE status = 'valid' AND is_asked(getvariable('baseline'), candidate)
  ORDER BY (kind = 'effective') DESC, ordinal
  LIMIT 1
),
by_source AS (
  SELECT * REPLACE (source AS stratum) FROM traffic_cells
),
pairs AS (
  SELECT ordinal, c.candidate, baseline, c.tensor, c.layer, c.kv_head,
    sqnr_db(sum(c.w_sq_signal), sum(c.w_sq_error)) AS here_db,
    sqnr_db(sum(b.w_sq_signal), sum(b.w_sq_error)) AS there_db,
    here_db - there_db AS sqnr_change_db,
    here_db - there_db
      < -coalesce(getvariable('margin_db')::DOUBLE, 0.1) AS regression,
    share(sum(c.w_clipped), sum(c.w_values)) AS here_frac,
    share(sum(b.w_clipped), sum(b.w_values)) AS there_frac,
    sum(c.num_values)::BIGINT AS num_values,
    sum(c.num_clipped)::BIGINT AS num_clipped,
    sum(b.num_clipped)::BIGINT AS num_baseline_clipped
  FROM value_sums(by_source) AS c
    JOIN value_sums(by_source) AS b USING (tensor, layer, kv_head, stratum)
    JOIN chosen ON b.candidate = baseline
    JOIN quantizing ON c.candidate = quantizing.candidate
  WHERE c.candidate <> baseline AND is_candidate(c.candidate)
  GROUP BY ALL
),
shown AS MATERIALIZED (
  SELECT *,
    count(*) OVER same AS num_heads,
    count(*) FILTER (regression) OVER same AS num_heads_regressed,
    avg(sqnr_change_db) OVER same AS mean_sqnr_change_db
  FROM pairs
  WINDOW same AS (PARTITION BY candidate, tensor)
  QUALIFY row_number() OVER (
      same ORDER BY sqnr_change_db NULLS LAST, layer, kv_head
    ) <= coalesce(getvariable('top')::INTEGER, 10)
),
-- The error of both in each request group, for the interval.
grouped AS (
  SELECT * REPLACE (
    {'source': source, 'layer': layer, 'kv_head': kv_head} AS stratum
  )
  FROM traffic_groups
),
errors AS (
  SELECT candidate, tensor, layer, kv_head,
    list(here ORDER BY request_group) AS here,
    list(there ORDER BY request_group) AS there
  FROM (
    SELECT c.candidate, c.tensor, c.stratum.layer, c.stratum.kv_head,
      c.request_group, sum(c.w_sq_error) AS here, sum(b.w_sq_error) AS there
    FROM group_sums(grouped) AS c
      JOIN group_sums(grouped) AS b USING (tensor, stratum, request_group)
      JOIN chosen ON b.candidate = baseline
    GROUP BY ALL
  )
  GROUP BY candidate, tensor, layer, kv_head
)
SELECT candidate, baseline, tensor, layer, kv_head, regression,
  sqnr_change_db, here_db AS sqnr_db, there_db AS baseline_sqnr_db,
  here_frac - there_frac AS clipped_frac_change, here_frac AS clipped_frac,
  there_frac AS baseline_clipped_frac, num_values, num_clipped,
  num_baseline_clipped, num_heads, num_heads_regressed,
  mean_sqnr_change_db,
  sqnr_db(ratio_low(there, here), 1) AS sqnr_change_low_db,
  sqnr_db(ratio_high(there, here), 1) AS sqnr_change_high_db
FROM shown LEFT JOIN errors USING (candidate, tensor, layer, kv_head)
ORDER BY ordinal, tensor, sqnr_change_db NULLS LAST, layer, kv_head;

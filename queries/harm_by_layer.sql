-- Which layers carry the harm of each candidate, and the query head most.
-- Grain: one row per (candidate, layer); none where no queries were captured.
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/harm_by_layer.sql
--
-- Parameters
--   candidate  candidate; all           this one alone
--   workload   workload; all            this workload alone
--   phase      prefill or decode; both  this phase alone
--   source     trace; all               this trace alone
--
-- Columns
--   candidate         the candidate's name
--   layer             the model's layer
--   harm              what the layer adds to R (see the query harm)
--   harm_share        of the candidate's R, 0 to 1; NULL: it has none
--   k_share           of the layer's squared error: by K alone, 0 to 1
--   v_share           by V alone
--   query_head        query head with the largest ‖Δo‖²; NULL: none has any
--   kv_head           the KV head that it reads
--   query_head_share  its share of the layer's Σ ‖Δo‖², 0 to 1
WITH heads AS (
  SELECT candidate, layer, query_head, kv_head, sum(sum_do2) AS do2,
    sum(sum_do2_k) AS k, sum(sum_do2_k + sum_do2_v + sum_do2_q) AS parts,
    sum(sum_do2_v) AS v
  FROM traffic_attention
  WHERE is_candidate(candidate)
  GROUP BY ALL
)
SELECT candidate, layer, layer_harm AS harm,
  share(layer_harm, sum(layer_harm) OVER (PARTITION BY candidate))
    AS harm_share,
  share(sum(k), sum(parts)) AS k_share, share(sum(v), sum(parts)) AS v_share,
  arg_max(query_head, do2) FILTER (do2 > 0) AS query_head,
  arg_max(kv_head, do2) FILTER (do2 > 0) AS kv_head,
  share(max(do2), sum(do2)) AS query_head_share
FROM heads
  JOIN layer_harm(traffic_harm) USING (candidate, layer)
  JOIN candidates USING (candidate)
GROUP BY candidate, ordinal, layer, layer_harm
ORDER BY ordinal, layer;

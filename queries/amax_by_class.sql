-- Which class of requests reaches furthest, compared at equal size.
-- Grain: one row per (tensor, layer, kv_head, class), heads where the classes
-- differ most first.
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/amax_by_class.sql
--
-- A maximum grows with the number of requests, so that of the class captured
-- most is no evidence. Here requests are rarefied: expected_amax is the mean
-- largest magnitude over all choices of num_compared requests of the class,
-- the number that the smallest class of the head has. Candidates play no part;
-- compare with covered_amax of the view scales.
--
-- Parameters
--   by            workload or prompt or output; workload  what the classes are
--                                                         of; prompt and
--                                                         output: their
--                                                         lengths
--   edges         ascending whole numbers; quantiles      lengths where
--                                                         classes of prompt or
--                                                         output end, such as
--                                                         512,4096; the
--                                                         quantiles are 0.25,
--                                                         0.75 and 0.95
--   min_requests  whole number from 1; 3                  classes of fewer
--                                                         requests are left
--                                                         out
--   top           whole number from 1; 10                 heads shown per
--                                                         tensor
--   tensor        k or v; both                            this tensor alone
--   layer         layer; all                              this layer alone
--   kv_head       KV head; all                            this KV head alone
--   source        trace; all                              this trace alone
--
-- Columns
--   tensor         k or v
--   layer          layer index
--   kv_head        global KV-head index
--   class          the workload; for lengths the tokens of its shortest and of
--                  its longest request, such as 18–240
--   spread         largest expected_amax of the head's classes over this one's
--   expected_amax  mean largest magnitude over num_compared of its requests
--   live_amax      largest magnitude over all of its requests
--   num_requests   requests with a vector here
--   num_compared   requests compared, the same for all classes of the head
WITH classes AS (
  SELECT source, request, class_number,
    tokens_from || '–' || tokens_to AS class
  FROM length_classes
  WHERE length = getvariable('by')
  UNION ALL
  SELECT source, request, NULL, workload
  FROM requests
  WHERE sampled AND coalesce(getvariable('by'), 'workload') = 'workload'
),
maxima AS (
  SELECT tensor, layer, kv_head, class, class_number, source, request,
    max(magnitude(absmax_code, dtype)) AS amax
  FROM chosen_vectors
    JOIN layers USING (source, layer)
    JOIN chosen_tokens USING (source, "row")
    JOIN classes USING (source, request)
  WHERE absmax_code IS NOT NULL
  GROUP BY ALL
),
ranked AS (
  SELECT tensor, layer, kv_head, class, class_number,
    list(amax ORDER BY amax) AS maxima, count(*) AS num_requests
  FROM maxima
  GROUP BY ALL
  HAVING num_requests >= coalesce(getvariable('min_requests')::BIGINT, 3)
),
-- Of N requests the i-th narrowest is the widest of n in C(i - 1, n - 1) of
-- C(N, n) choices.
expected AS (
  SELECT *, min(num_requests) OVER head AS num_compared,
    maxima[-1] AS live_amax,
    list_sum([
      maxima[i] * exp(log_choose(i - 1, num_compared - 1)
        - log_choose(num_requests, num_compared))
      FOR i IN range(num_compared, num_requests + 1)
    ]) AS expected_amax
  FROM ranked
  WINDOW head AS (PARTITION BY tensor, layer, kv_head)
),
compared AS (
  SELECT *,
    share(max(expected_amax) OVER head, expected_amax) AS spread,
    share(max(expected_amax) OVER head, min(expected_amax) OVER head)
      AS head_spread
  FROM expected
  WINDOW head AS (PARTITION BY tensor, layer, kv_head)
)
SELECT tensor, layer, kv_head, class, spread, expected_amax, live_amax,
  num_requests, num_compared
FROM compared
QUALIFY dense_rank() OVER (
    PARTITION BY tensor
    ORDER BY head_spread DESC NULLS LAST, layer, kv_head
  ) <= coalesce(getvariable('top')::INTEGER, 10)
ORDER BY tensor, head_spread DESC NULLS LAST, layer, kv_head, class_number,
  class;

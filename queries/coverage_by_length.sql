-- What was captured of each workload in each class of lengths; empty ones too.
-- Grain: one row per (workload, length, class).
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/coverage_by_length.sql
--
-- The classes are those of by_length_class. 0 requests: nothing can be said of
-- that class, whatever the shares of the others.
--
-- Parameters
--   prompt_edges  ascending whole numbers; quantiles  where classes of prompt
--                                                     lengths end; 512,4096:
--                                                     up to 512, up to 4,096
--                                                     and beyond; the
--                                                     quantiles are 0.25, 0.75
--                                                     and 0.95
--   output_edges  ascending whole numbers; quantiles  the same for output
--                                                     lengths
--   workload      workload; all                       this workload alone
--   source        trace; all                          this trace alone
--
-- Columns
--   workload                 the client's label, or unlabelled
--   length                   prompt or output: what the class is of
--   class                    its number, 1 for the shortest
--   tokens_above             lengths beyond this, tokens; NULL: from 0
--   tokens_to                up to this, tokens; NULL: no end
--   num_sampled_requests     requests the sampling rules chose; 0: none
--   num_requests             requests with a captured row; 0: none
--   num_incomplete_requests  of them, those not captured in full
--   num_tokens               captured rows; 0: none
WITH numbered AS (
  SELECT workload, length, class_number, request, incomplete,
    captured.num_tokens
  FROM chosen_requests
    JOIN length_classes USING (source, request)
    LEFT JOIN (
      SELECT source, request, count(*) AS num_tokens FROM rows GROUP BY ALL
    ) AS captured USING (source, request)
)
SELECT workload, length, (class_number + 1)::INTEGER AS class,
  CASE WHEN class_number > 0 THEN any_value(edges)[class_number] END
    AS tokens_above,
  any_value(edges)[class_number + 1] AS tokens_to,
  count(request) AS num_sampled_requests,
  count(num_tokens) AS num_requests,
  count(num_tokens) FILTER (incomplete) AS num_incomplete_requests,
  coalesce(sum(num_tokens), 0)::BIGINT AS num_tokens
FROM (SELECT DISTINCT workload FROM chosen_requests)
  CROSS JOIN (
    SELECT length, edges, unnest(range(len(edges) + 1)) AS class_number
    FROM length_edges
  )
  LEFT JOIN numbered USING (workload, length, class_number)
GROUP BY workload, length, class_number
ORDER BY workload, length DESC, class;

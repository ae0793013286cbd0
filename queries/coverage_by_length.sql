-- What was captured of each workload in each class of lengths; empty ones too.
-- Grain: one row per (workload, length, class).
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -f .../queries/coverage_by_length.sql
--
-- The classes are those of by_length_class. 0 requests: nothing can be said of
-- that class, whatever the shares of the others.
--
-- Parameters
--   prompt_edges  such as 512,4096: classes up to 512, up to 4,096 and
--                 beyond; the quantiles 0.25, 0.75 and 0.95 if absent
--   output_edges  the same for output lengths
--   workload      this workload alone; all
--   source        this trace alone; all
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
WITH edges AS (
  SELECT 'prompt' AS length,
    coalesce(
      string_split(getvariable('prompt_edges')::VARCHAR, ',')::BIGINT[],
      quantile_disc(prompt_tokens, [0.25, 0.75, 0.95])
    ) AS edges
  FROM requests
  WHERE sampled
  UNION ALL
  SELECT 'output',
    coalesce(
      string_split(getvariable('output_edges')::VARCHAR, ',')::BIGINT[],
      quantile_disc(output_tokens, [0.25, 0.75, 0.95])
    )
  FROM requests
  WHERE sampled
),
classes AS (
  SELECT length, edges, unnest(range(1, len(edges) + 2)) AS class
  FROM edges
),
captured AS (
  SELECT source, request, count(*) AS num_tokens
  FROM rows
  GROUP BY source, request
),
numbered AS (
  SELECT workload, length, request, num_tokens,
    incomplete,
    1 + list_sum([
      (CASE WHEN length = 'prompt' THEN prompt_tokens ELSE output_tokens END
        > edge)::INTEGER
      FOR edge IN edges
    ]) AS class
  FROM requests
    CROSS JOIN edges
    LEFT JOIN captured USING (source, request)
  WHERE sampled
    AND source = coalesce(getvariable('source')::VARCHAR, source)
),
workloads AS (
  SELECT DISTINCT workload
  FROM requests
  WHERE workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
)
SELECT workload, length, class::INTEGER AS class,
  CASE WHEN class > 1 THEN any_value(edges)[class - 1] END AS tokens_above,
  any_value(edges)[class] AS tokens_to,
  count(request) AS num_sampled_requests,
  count(num_tokens) AS num_requests,
  count(num_tokens) FILTER (incomplete) AS num_incomplete_requests,
  coalesce(sum(num_tokens), 0)::BIGINT AS num_tokens
FROM workloads
  CROSS JOIN classes
  LEFT JOIN numbered USING (workload, length, class)
GROUP BY workload, length, class
ORDER BY workload, length DESC, class;

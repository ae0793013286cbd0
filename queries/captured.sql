-- What was captured of each workload, and what is missing.
-- Grain: one row per (source, workload).
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/captured.sql
--
-- Parameters
--   source  trace; all  this trace alone
--
-- Columns
--   source                   the trace's name
--   workload                 the client's label, or unlabelled
--   num_requests             requests the engine saw
--   num_sampled_requests     requests the sampling rules chose
--   num_captured_requests    requests with a captured row
--   num_incomplete_requests  sampled requests not captured in full
--   num_prefill_tokens       captured rows
--   num_decode_tokens        captured rows
--   max_position             largest captured position, 0-based
--   max_prompt_tokens        tokens, of the sampled requests
--   max_output_tokens        tokens, of the sampled requests
--   num_missing              positions not captured: cache hits, switched off
--   num_dropped              rows sampled and lost, over all ranks
WITH captured AS (
  SELECT source, workload,
    count(DISTINCT request) AS num_captured_requests,
    count(*) FILTER (phase = 'prefill') AS num_prefill_tokens,
    count(*) FILTER (phase = 'decode') AS num_decode_tokens,
    max(position) AS max_position
  FROM chosen_tokens
  GROUP BY source, workload
),
labels AS (
  SELECT source, workload,
    count(*) AS num_requests,
    count(*) FILTER (sampled) AS num_sampled_requests,
    count(*) FILTER (sampled AND incomplete) AS num_incomplete_requests,
    max(prompt_tokens) FILTER (sampled) AS max_prompt_tokens,
    max(output_tokens) FILTER (sampled) AS max_output_tokens,
    coalesce(sum(num_missing) FILTER (sampled), 0)::BIGINT AS num_missing,
    coalesce(sum(num_dropped) FILTER (sampled), 0)::BIGINT AS num_dropped
  FROM chosen_requests
  GROUP BY source, workload
)
SELECT source, workload, num_requests, num_sampled_requests,
  coalesce(num_captured_requests, 0) AS num_captured_requests,
  num_incomplete_requests,
  coalesce(num_prefill_tokens, 0) AS num_prefill_tokens,
  coalesce(num_decode_tokens, 0) AS num_decode_tokens,
  max_position, max_prompt_tokens, max_output_tokens, num_missing,
  num_dropped
FROM labels LEFT JOIN captured USING (source, workload)
ORDER BY source, workload;

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
  SELECT source, request,
    count(*) FILTER (phase = 'prefill') AS num_prefill,
    count(*) FILTER (phase = 'decode') AS num_decode,
    max(position) AS position
  FROM rows
  GROUP BY source, request
)
SELECT source, workload,
  count(*) AS num_requests,
  count(*) FILTER (sampled) AS num_sampled_requests,
  count(position) AS num_captured_requests,
  count(*) FILTER (sampled AND incomplete) AS num_incomplete_requests,
  coalesce(sum(num_prefill), 0)::BIGINT AS num_prefill_tokens,
  coalesce(sum(num_decode), 0)::BIGINT AS num_decode_tokens,
  max(position) AS max_position,
  max(prompt_tokens) FILTER (sampled) AS max_prompt_tokens,
  max(output_tokens) FILTER (sampled) AS max_output_tokens,
  coalesce(sum(num_missing) FILTER (sampled), 0)::BIGINT AS num_missing,
  coalesce(sum(num_dropped) FILTER (sampled), 0)::BIGINT AS num_dropped
FROM chosen_requests LEFT JOIN captured USING (source, request)
GROUP BY source, workload
ORDER BY source, workload;

-- What was captured of each workload at each position; empty strata too.
-- Grain: one row per (workload, phase, position_octave), over every phase and
-- octave that any workload has.
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -f .../queries/coverage.sql
--
-- 0 rows: nothing can be said of that stratum, whatever the shares say. Tokens
-- of one request are alike, so requests are what counts.
--
-- Parameters
--   workload  this workload alone; all
--   source    this trace alone; all
--
-- Columns
--   workload         the client's label, or unlabelled
--   phase            prefill or decode
--   position_octave  n: positions 2^n to 2^(n+1) - 1; 0 as 1
--   position_from    first position of the octave
--   position_to      last position of the octave
--   num_requests     requests with a captured row here; 0: none
--   num_tokens       captured rows here; 0: none
WITH tokens AS (
  SELECT workload, phase, position_octave,
    count(DISTINCT (source, request)) AS num_requests,
    count(*) AS num_tokens
  FROM rows JOIN requests USING (source, request)
  WHERE source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY workload, phase, position_octave
),
workloads AS (
  SELECT DISTINCT workload
  FROM requests
  WHERE workload = coalesce(getvariable('workload')::VARCHAR, workload)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
),
strata AS (
  SELECT DISTINCT phase, position_octave
  FROM tokens
)
SELECT workload, phase, position_octave,
  octave_from(position_octave) AS position_from,
  octave_to(position_octave) AS position_to,
  coalesce(num_requests, 0) AS num_requests,
  coalesce(num_tokens, 0) AS num_tokens
FROM workloads
  CROSS JOIN strata
  LEFT JOIN tokens USING (workload, phase, position_octave)
ORDER BY workload, phase DESC, position_octave;

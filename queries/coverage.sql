-- What was captured of each workload at each position; empty strata too.
-- Grain: one row per (workload, phase, position_octave), over every phase and
-- octave that any workload has.
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/coverage.sql
--
-- 0 rows: nothing can be said of that stratum, whatever the shares say. Tokens
-- of one request are alike, so requests are what counts.
--
-- Parameters
--   workload  workload; all  this workload alone
--   source    trace; all     this trace alone
--
-- Columns
--   workload         the client's label, or unlabelled
--   phase            prefill or decode
--   position_octave  n: positions 2^n to 2^(n+1) - 1; 0 as 1
--   position_from    first position of the octave
--   position_to      last position of the octave
--   num_requests     requests with a captured row here; 0: none
--   num_tokens       captured rows here; 0: none
WITH strata AS (
  SELECT *, {
      'workload': workload, 'phase': phase, 'octave': position_octave
    } AS stratum
  FROM tokens
  WHERE is_source(source)
)
SELECT workload, phase, position_octave,
  octave_from(position_octave) AS position_from,
  octave_to(position_octave) AS position_to,
  coalesce(num_requests, 0) AS num_requests,
  coalesce(num_tokens, 0) AS num_tokens
FROM (SELECT DISTINCT workload FROM chosen_requests)
  CROSS JOIN (SELECT DISTINCT phase, position_octave FROM strata)
  LEFT JOIN coverage(strata)
    ON stratum = {
      'workload': workload, 'phase': phase, 'octave': position_octave
    }
ORDER BY workload, phase DESC, position_octave;

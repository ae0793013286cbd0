-- How much harm each candidate does to attention; whether it is the scales.
-- Grain: one row per (candidate, stratum); none without captured queries.
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/harm.sql
--
-- Harm is R of the view harm_knowledge: all candidates of a run have the same
-- kind of it, and kinds are never compared. Fresh scales just cover this
-- traffic: what they leave is the format's own.
--
-- Parameters
--   by         workload or position or step; all  a row for each of these
--   candidate  candidate; all                     this one alone
--   workload   workload; all                      this workload alone
--   phase      prefill or decode; both            this phase alone
--   source     trace; all                         this trace alone
--
-- Columns
--   candidate      the candidate's name
--   kind           bf16, effective, unit, … (see the view candidates)
--   knowledge      residual, projected or heads: what harm is relative to
--   workload       the requests' label; NULL: all
--   position_from  first position of the octave; NULL: all
--   step_from      first generated token of the octave, counted from 1; 0: in
--                  the prompt; NULL: all
--   harm           R, summed over layers
--   harm_low       95 % interval over requests; NULL: fewer than 8 of them
--   harm_high      its upper end
--   ratio          harm against that of fresh scales on the same queries
--   ratio_low      95 % interval, paired over requests; NULL: fewer than 8
--   ratio_high     its upper end
--   drift          of harm: what fresh scales in the same format would remove;
--                  NULL: another format than that of fresh scales
--   distortion     of harm: what they would leave, the format's own; NULL:
--                  not told apart
--   k_share        of the squared error: by K alone, 0 to 1
--   v_share        by V alone
--   q_share        by Q alone
--   shrinkage      Σ ⟨o, ô⟩ / Σ ‖o‖² - 1: the systematic part of the error
--   flipped_frac   share of queries whose largest logit is another key's
--   attention_kl   mean KL(attention before ‖ after), nats
--   top_overlap    mean share of the 8 largest logits' keys that stay
--   request_p99    99th percentile of single requests' harm
--   request_max    largest harm of a single request
--   num_requests   requests with queries
--   num_probes     queries
WITH totals AS (
  SELECT *, harm_factor(harm, without, 1, [1 FOR x IN without]) AS within
  FROM harm_totals
),
fresh AS (
  SELECT stratum, harm AS fresh_harm, without AS fresh_without, format
    AS fresh_format
  FROM totals JOIN candidates USING (candidate)
  WHERE kind = 'fresh'
)
SELECT candidate, kind, knowledge, stratum.workload,
  octave_from(stratum.octave) AS position_from,
  floor(pow(2, stratum.step))::INTEGER AS step_from,
  harm, harm / within AS harm_low, harm * within AS harm_high,
  harm / nullif(fresh_harm, 0) AS ratio,
  ratio / harm_factor(harm, without, fresh_harm, fresh_without) AS ratio_low,
  ratio * harm_factor(harm, without, fresh_harm, fresh_without) AS ratio_high,
  CASE WHEN format = fresh_format AND kind <> 'format'
    THEN greatest(harm - fresh_harm, 0) END AS drift,
  if(kind IN ('bf16', 'online'), harm, harm - drift) AS distortion,
  k_share, v_share, q_share, shrinkage, flipped_frac, attention_kl,
  top_overlap, request_p99, request_max, num_requests, num_probes
FROM totals
  JOIN harm_causes USING (candidate, stratum)
  JOIN request_harm USING (candidate, stratum)
  JOIN candidates USING (candidate)
  LEFT JOIN fresh USING (stratum), harm_knowledge
WHERE is_candidate(candidate)
ORDER BY ordinal, stratum;

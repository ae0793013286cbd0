-- What a scale per head would change where one scale serves a whole layer.
-- Grain: one row per (candidate, tensor, layer) of candidates applied per
-- tensor; 1.0 everywhere is left out.
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/compare_granularity.sql
--
-- One wide head sets the scale for all: the others get less of the range than
-- a scale of their own would give them. E4M3 keeps its precision over 15
-- binades, so an amax_ratio below some hundreds costs little: read gain_db,
-- measured with a candidate of the run that has scales per head.
--
-- Parameters
--   candidate  candidate; all                 this one alone, of those applied
--                                             per tensor
--   per_head   per-head candidate; the first  what is compared with
--   tensor     k or v; both                   this tensor alone
--   source     trace; all                     this trace alone
--
-- Columns
--   candidate                 the candidate's name
--   tensor                    k or v
--   layer                     layer index
--   num_heads                 KV heads
--   covered_amax              magnitude covered
--   widest_kv_head            head with the largest magnitude
--   widest_amax               its largest magnitude
--   second_amax               of the next head; NULL: there is one head
--   narrowest_amax            of the narrowest head
--   amax_ratio                widest_amax / narrowest_amax
--   clipped_frac              share of values clipped, 0 to 1
--   sqnr_db                   signal to noise, dB, higher is better
--   worst_head_sqnr_db        of the head with the lowest
--   per_head_candidate        what it is compared with; NULL: none in the run
--   per_head_clipped_frac     of that candidate, 0 to 1
--   per_head_sqnr_db          of that candidate
--   per_head_worst_sqnr_db    of its head with the lowest
--   gain_db                   per_head_sqnr_db - sqnr_db
--   num_values                finite values
WITH layers AS (
  SELECT candidate, tensor, layer,
    count(*) AS num_heads,
    min({'amax': -max_abs, 'kv_head': kv_head}) AS widest,
    list_sort(list(max_abs), 'DESC', 'NULLS LAST')[2] AS second_amax,
    min(max_abs) AS narrowest_amax,
    share(sum(w_clipped), sum(w_values)) AS clipped_frac,
    sqnr_db(sum(w_sq_signal), sum(w_sq_error)) AS sqnr_db,
    min(v.sqnr_db) AS worst_head_sqnr_db,
    sum(num_values)::BIGINT AS num_values,
    min(covered_amax) AS covered_amax
  FROM value_sums(traffic_cells) AS v
    LEFT JOIN covered_heads USING (candidate, tensor, layer, kv_head)
  GROUP BY candidate, tensor, layer
),
per_head AS (
  SELECT candidate AS per_head_candidate
  FROM quantizing
  WHERE status = 'valid' AND granularity = 'attn_head'
    AND is_asked(getvariable('per_head'), candidate)
  ORDER BY ordinal
  LIMIT 1
)
SELECT t.candidate, t.tensor, t.layer, t.num_heads, t.covered_amax,
  t.widest.kv_head AS widest_kv_head, abs(t.widest.amax) AS widest_amax,
  t.second_amax, t.narrowest_amax,
  share(abs(t.widest.amax), t.narrowest_amax) AS amax_ratio,
  t.clipped_frac, t.sqnr_db, t.worst_head_sqnr_db,
  per_head_candidate,
  h.clipped_frac AS per_head_clipped_frac,
  h.sqnr_db AS per_head_sqnr_db,
  h.worst_head_sqnr_db AS per_head_worst_sqnr_db,
  h.sqnr_db - t.sqnr_db AS gain_db,
  t.num_values
FROM layers AS t
  JOIN quantizing USING (candidate)
  LEFT JOIN per_head ON true
  LEFT JOIN layers AS h
    ON h.candidate = per_head_candidate
    AND h.tensor = t.tensor
    AND h.layer = t.layer
WHERE granularity = 'tensor' AND kind <> 'unit' AND is_candidate(t.candidate)
ORDER BY ordinal, t.tensor, gain_db DESC NULLS LAST, t.layer;

-- Where each head leaves the range most: its position octave, its workload.
-- Grain: one row per (candidate, tensor, layer, kv_head) with a value out of
-- range.
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/locate_heads.sql
--
-- The stratum with the largest clipped_frac, then out_of_range_frac, is the
-- one shown; strata of fewer than min_tokens rows are passed over while a
-- larger one has values out of range.
--
-- Parameters
--   candidate   candidate; all          this one alone
--   tensor      k or v; both            this tensor alone
--   source      trace; all              this trace alone
--   min_tokens  whole number from 0; 8  rows below which a stratum says little
--
-- Columns
--   candidate                   the candidate's name
--   tensor                      k or v
--   layer                       layer index
--   kv_head                     global KV-head index
--   position_from               first position of the octave
--   position_to                 last position of the octave
--   position_out_of_range_frac  share of the head's values there, 0 to 1
--   position_clipped_frac       share of the head's values there, 0 to 1
--   position_num_tokens         rows there
--   workload                    the workload
--   workload_out_of_range_frac  share of the head's values there, 0 to 1
--   workload_clipped_frac       share of the head's values there, 0 to 1
--   workload_num_tokens         rows there
WITH places AS (
  SELECT candidate, tensor, layer, kv_head, {
      'too_few': sum(num_rows)
        < coalesce(getvariable('min_tokens')::BIGINT, 8),
      'clipped': -sum(weight * num_clipped) / sum(weight * num_values),
      'out_of_range': -sum(weight * num_out_of_range)
        / sum(weight * num_values),
      'octave': position_octave, 'workload': workload,
      'num_tokens': sum(num_rows)::BIGINT
    } AS place
  FROM chosen_cells JOIN sampling USING (source, sampling_id)
  GROUP BY candidate, tensor, layer, kv_head,
    GROUPING SETS ((position_octave), (workload))
  HAVING sum(num_out_of_range) > 0
),
worst AS (
  SELECT candidate, tensor, layer, kv_head,
    min(place) FILTER (place.workload IS NULL) AS at_position,
    min(place) FILTER (place.workload IS NOT NULL) AS in_workload
  FROM places
  GROUP BY candidate, tensor, layer, kv_head
)
SELECT candidate, tensor, layer, kv_head,
  octave_from(at_position.octave) AS position_from,
  octave_to(at_position.octave) AS position_to,
  abs(at_position.out_of_range) AS position_out_of_range_frac,
  abs(at_position.clipped) AS position_clipped_frac,
  at_position.num_tokens AS position_num_tokens,
  in_workload.workload AS workload,
  abs(in_workload.out_of_range) AS workload_out_of_range_frac,
  abs(in_workload.clipped) AS workload_clipped_frac,
  in_workload.num_tokens AS workload_num_tokens
FROM worst JOIN candidates USING (candidate)
ORDER BY ordinal, tensor, layer, kv_head;

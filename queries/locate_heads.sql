-- Where each head leaves the range most: its position octave, its workload.
-- Grain: one row per (candidate, tensor, layer, kv_head) with a value out of
-- range.
-- By hand: cd RUN && duckdb -init .../queries/views.sql \
--   -f .../queries/locate_heads.sql
--
-- The stratum with the largest clipped_frac, then out_of_range_frac, is the
-- one shown; strata of fewer than min_tokens rows are passed over while a
-- larger one has values out of range.
--
-- Parameters
--   candidate   this candidate alone; all
--   tensor      k or v alone; both
--   source      this trace alone; all
--   min_tokens  rows below which a stratum says little; 8
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
WITH strata AS (
  SELECT candidate, tensor, layer, kv_head, position_octave, workload,
    sum(num_vectors)::BIGINT AS num_tokens,
    sum(weight * num_values) AS w_values,
    sum(weight * num_out_of_range) AS w_out_of_range,
    sum(weight * num_clipped) AS w_clipped
  FROM cells JOIN sampling USING (source, sampling_id)
  WHERE candidate = coalesce(getvariable('candidate')::VARCHAR, candidate)
    AND tensor = coalesce(getvariable('tensor')::VARCHAR, tensor)
    AND source = coalesce(getvariable('source')::VARCHAR, source)
  GROUP BY GROUPING SETS (
    (candidate, tensor, layer, kv_head, position_octave),
    (candidate, tensor, layer, kv_head, workload)
  )
  HAVING sum(num_out_of_range) > 0
),
worst AS (
  SELECT candidate, tensor, layer, kv_head,
    min({
      'too_few': num_tokens < coalesce(getvariable('min_tokens')::BIGINT, 8),
      'clipped': -w_clipped / w_values,
      'out_of_range': -w_out_of_range / w_values,
      'octave': position_octave, 'num_tokens': num_tokens
    }) FILTER (workload IS NULL) AS position_worst,
    min({
      'too_few': num_tokens < coalesce(getvariable('min_tokens')::BIGINT, 8),
      'clipped': -w_clipped / w_values,
      'out_of_range': -w_out_of_range / w_values,
      'workload': workload, 'num_tokens': num_tokens
    }) FILTER (workload IS NOT NULL) AS workload_worst
  FROM strata
  GROUP BY candidate, tensor, layer, kv_head
)
SELECT candidate, tensor, layer, kv_head,
  octave_from(position_worst.octave) AS position_from,
  octave_to(position_worst.octave) AS position_to,
  abs(position_worst.out_of_range) AS position_out_of_range_frac,
  abs(position_worst.clipped) AS position_clipped_frac,
  position_worst.num_tokens AS position_num_tokens,
  workload_worst.workload AS workload,
  abs(workload_worst.out_of_range) AS workload_out_of_range_frac,
  abs(workload_worst.clipped) AS workload_clipped_frac,
  workload_worst.num_tokens AS workload_num_tokens
FROM worst JOIN candidates USING (candidate)
ORDER BY ordinal, tensor, layer, kv_head;

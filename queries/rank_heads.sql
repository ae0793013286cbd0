-- Heads that leave the FP8 range, most first, K and V apart.
-- Grain: one row per (candidate, tensor, layer, kv_head).
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/rank_heads.sql
--
-- Fractions weigh each row by what it was sampled from (view sampling); the
-- num_ columns are plain counts. A token's vector counts as out of range when
-- its widest value is. Out of range but not clipped is harmless: the value
-- rounds to MAX. Candidates that quantize nothing (bf16) are left out.
--
-- Parameters
--   top        whole number from 1; 10  heads shown per candidate, tensor and
--                                       ranking
--   candidate  candidate; all           this one alone
--   tensor     k or v; both             this tensor alone
--   source     trace; all               this trace alone
--   intervals  true or false            work out the intervals; true if a
--                                       candidate is named, else they are NULL
--
-- Columns
--   candidate                  the candidate's name
--   tensor                     k or v
--   rank                       1 = largest out_of_range_frac
--   vector_rank                1 = largest vectors_out_of_range_frac
--   layer                      layer index
--   kv_head                    global KV-head index
--   out_of_range_frac          share of values out of range, 0 to 1
--   clipped_frac               share of values clipped, 0 to 1
--   vectors_out_of_range_frac  share of vectors out of range, 0 to 1
--   vectors_clipped_frac       share of vectors with a clipped value, 0 to 1
--   vectors_clipped_low        95 % interval of that over requests; NULL:
--                              fewer than 3 of them, too few to tell, or not
--                              asked for (see intervals)
--   vectors_clipped_high       its upper end; NULL: fewer than 5 requests, or
--                              not asked for
--   flushed_frac               share of values flushed to 0, 0 to 1
--   clip_error_frac            share of the squared error due to clipping
--   sqnr_db                    signal to quantization noise, dB, higher better
--   num_values                 finite values
--   num_out_of_range           values
--   num_clipped                values
--   num_flushed                values
--   num_nonfinite              NaN and inf, in no other column
--   num_vectors                vectors with a finite value
--   num_vectors_out_of_range   vectors
--   num_vectors_clipped        vectors
--   max_abs                    largest finite magnitude
--   covered_amax               magnitude covered, the smallest over sources;
--                              NULL: no scale of its own (kind online)
WITH shown AS MATERIALIZED (
  SELECT * EXCLUDE (stratum),
    row_number() OVER (
      same ORDER BY out_of_range_frac DESC NULLS LAST,
        clipped_frac DESC NULLS LAST, layer, kv_head
    ) AS rank,
    row_number() OVER (
      same ORDER BY vectors_out_of_range_frac DESC NULLS LAST,
        vectors_clipped_frac DESC NULLS LAST, layer, kv_head
    ) AS vector_rank
  FROM value_sums(chosen_cells)
    JOIN quantizing USING (candidate)
    LEFT JOIN vector_sums(chosen_tokens)
      USING (candidate, tensor, layer, kv_head)
  WINDOW same AS (PARTITION BY candidate, tensor)
  QUALIFY least(rank, vector_rank)
    <= coalesce(getvariable('top')::INTEGER, 10)
),
in_doubt AS (
  SELECT *
  FROM chosen_scales SEMI JOIN shown USING (candidate, tensor, layer, kv_head)
  WHERE coalesce(
    getvariable('intervals')::BOOLEAN, getvariable('candidate') IS NOT NULL
  )
),
intervals AS (
  SELECT candidate, tensor, layer, kv_head, request_sums(x, n) AS clipped
  FROM (
    SELECT candidate, tensor, layer, kv_head, source, request,
      sum(weight) AS n,
      sum(if(absmax_code > max_unclipped_code, weight, 0)) AS x
    FROM chosen_vectors
      JOIN in_doubt USING (source, layer, kv_head, tensor)
      JOIN chosen_tokens USING (source, "row")
    WHERE absmax_code IS NOT NULL
    GROUP BY ALL
  )
  GROUP BY candidate, tensor, layer, kv_head
)
SELECT candidate, tensor, rank, vector_rank, layer, kv_head,
  out_of_range_frac, clipped_frac, vectors_out_of_range_frac,
  vectors_clipped_frac,
  fraction_low(clipped) AS vectors_clipped_low,
  fraction_high(clipped) AS vectors_clipped_high,
  flushed_frac, clip_error_frac, sqnr_db,
  num_values, num_out_of_range, num_clipped, num_flushed, num_nonfinite,
  num_vectors, num_vectors_out_of_range, num_vectors_clipped,
  max_abs, covered_amax
FROM shown LEFT JOIN intervals USING (candidate, tensor, layer, kv_head)
ORDER BY ordinal, tensor, rank, layer, kv_head;

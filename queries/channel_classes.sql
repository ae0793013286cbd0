-- What ordinary channels lose in heads where a few outliers hold most of Σ x².
-- Grain: one row per (candidate, tensor, layer, kv_head) with such channels,
-- the worst of each candidate and tensor.
-- By hand: cd RUN && Q=.../queries && duckdb -init $Q/views.sql \
--   -f $Q/intervals.sql -f $Q/measures.sql -f $Q/channel_classes.sql
--
-- There every share of Σ x² is the outliers' alone: sqnr_db says little of the
-- other channels. No rows where no head has outliers, the replay made no
-- counts (--direct), or the run is of before 1.3.
--
-- Parameters
--   top        whole number from 1; 10  heads shown per candidate and tensor
--   candidate  candidate; all           this one alone
--   tensor     k or v; both             this tensor alone
--   workload   workload; all            this workload alone
--   source     trace; all               this trace alone
--
-- Columns
--   candidate              the candidate's name
--   tensor                 k or v
--   layer                  layer index
--   kv_head                global KV-head index
--   channel_count          ordinary channels of the head
--   ordinary_sqnr_db       their signal to quantization noise, dB, higher
--                          better; NULL: they lose nothing
--   outlier_sqnr_db        the same of the outliers; NULL: they lose nothing
--   sqnr_db                the same of all channels; NULL: nothing is lost
--   floor_db               what rounding alone leaves; NULL: the format has no
--                          such floor (int8)
--   ordinary_flushed_frac  share of the ordinary channels' values flushed to
--                          0, 0 to 1
--   outlier_signal_frac    share of the head's Σ x² in the outliers, 0 to 1
SELECT candidate, tensor, layer, kv_head, channel_count, ordinary_sqnr_db,
  outlier_sqnr_db, sqnr_db, rounding_floor_db AS floor_db,
  ordinary_flushed_frac, outlier_signal_frac
FROM channel_classes
  JOIN value_sums(chosen_cells) USING (candidate, tensor, layer, kv_head)
  JOIN candidates USING (candidate)
QUALIFY row_number() OVER (
    PARTITION BY candidate, tensor
    ORDER BY ordinary_sqnr_db NULLS LAST, layer, kv_head
  ) <= coalesce(getvariable('top')::INTEGER, 10)
ORDER BY ordinal, tensor, ordinary_sqnr_db NULLS LAST, layer, kv_head;

"""The trace: its format on disk (`format`, `chunks`), its reader and its strata."""

"""A run: the Parquet files and `run.json` that a replay writes and every query reads."""

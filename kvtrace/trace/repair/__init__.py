"""Keep what is provably good of a damaged trace, and say what is lost."""

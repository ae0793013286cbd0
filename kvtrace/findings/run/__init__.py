"""Rules over a finished run: a file a rule, and what they look at."""

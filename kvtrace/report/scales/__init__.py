"""The report of `kvtrace scales`: what an artifact holds, and what an audit finds in it."""

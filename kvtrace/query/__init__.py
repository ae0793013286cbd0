"""Find and run the SQL of `queries/` on a run, or a user's own; nothing beyond the run is read or written."""

from kvtrace.query.connection import RunConnection
from kvtrace.query.execute import Result, connect_with_views, run_query, run_query_table, run_sql
from kvtrace.query.judged import connect_to_judge
from kvtrace.query.library import Query, all_queries, find_query

__all__ = [
    "Query",
    "Result",
    "RunConnection",
    "all_queries",
    "connect_to_judge",
    "connect_with_views",
    "find_query",
    "run_query",
    "run_query_table",
    "run_sql",
]

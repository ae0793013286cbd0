"""Statistics of vector fractions and ratios: intervals, pairs, false discoveries.

The unit is the request: tokens of one request are not independent. "Too few requests to tell" is a result,
never an exception.
"""

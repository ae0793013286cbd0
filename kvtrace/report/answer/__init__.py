"""The answer of a report: one object that every output prints and none adds to."""

"""A candidate: scales as one engine setup would apply them, bound to traces."""

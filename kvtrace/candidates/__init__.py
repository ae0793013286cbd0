"""A candidate: scales as one engine setup would apply them, bound to traces. One class per kind (`kinds`)."""

"""From a trace of a faulty deployment to a checkpoint that can be served in its place."""

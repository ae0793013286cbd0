"""All cases, in one order."""

from checkpoint_cases import checkpoints, further, traces

CASES = (*checkpoints.CASES, *further.CASES, *traces.CASES)

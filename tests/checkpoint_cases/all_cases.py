"""All cases, in one order."""

from checkpoint_cases import checkpoints, traces

CASES = (*checkpoints.CASES, *traces.CASES)

"""From the rows of a run to a verdict: one rule a file, each with `check(case)`, which yields findings."""

from kvtrace.diagnosis.diagnose import RULES, Diagnosis, HeadLoss, Verdict, diagnose
from kvtrace.diagnosis.finding import SEVERITIES, Finding

__all__ = ["RULES", "SEVERITIES", "Diagnosis", "Finding", "HeadLoss", "Verdict", "diagnose"]

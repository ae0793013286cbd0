"""Faults made on purpose: damaged files, killed writers, full disks. `python -m faults` runs them all."""

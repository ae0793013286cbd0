"""Planted incidents: faults put into real captured traces and real artifacts, and what the diagnosis says."""

"""What pytest must not import while it looks for doctests: scripts of the vLLM environment."""

collect_ignore_glob = ["incidents/make_*.py", "vllm/run_*.py", "vllm/make_env.py", "faults/*_connector.py"]

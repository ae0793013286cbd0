"""What `kvtrace capture` does outside vLLM: flags for a server, an offline run, and the plan before either.

The plug-in itself lives in `kvtrace_capture`, inside vLLM's environment; nothing here imports it.
"""

"""Lets Triton's kernels run on a CPU, by Triton's own interpreter: for tests of vLLM's V2 model runner.

On `PYTHONPATH`, with `TRITON_INTERPRET=1` and `VLLM_USE_V2_MODEL_RUNNER=1`, every process of vLLM finds it by
its entry points. Casts to FP8 are wrong in the interpreter: nothing is judged by them.
"""

"""How many tokens and requests a KV cache holds: the arithmetic of vLLM's own planning, without vLLM.

`model_layers` reads what each layer of a model keeps, `plan_cache` turns it into blocks and tokens.
"""

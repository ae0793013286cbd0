"""kvtrace: do the FP8 KV-cache scales still cover what the model now produces?"""

__version__ = "0.1.0"

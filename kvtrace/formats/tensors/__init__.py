"""The formats' round trips in torch, on CPU and CUDA: what `compiled` is checked against."""

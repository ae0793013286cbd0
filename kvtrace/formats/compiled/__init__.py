"""The formats' round trips compiled for the CPU, one vector after the other."""

"""Small ops of a replay on the CPU, made one after the other in one call of `aotair-kernels`."""

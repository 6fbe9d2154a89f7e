"""Ops that the builder knows and torch does not: definitions, shapes and host kernels, where no package brings them."""

"""Passes over a matrix of updates (n, d): on the host by numba and BLAS, on an accelerator by jax.numpy."""

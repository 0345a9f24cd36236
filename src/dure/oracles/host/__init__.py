"""Frameworks that XLA can't compile, asked by the compiled round through callbacks into worker processes."""

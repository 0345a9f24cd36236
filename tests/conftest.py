"""Annotations are executed: every call in the tests checks shapes and types (jaxtyping + beartype)."""

import os
import sys
from pathlib import Path

import jax
from jaxtyping import install_import_hook

sys.path.insert(0, str(Path(__file__).parent))  # for typechecker.py and problems.py
install_import_hook("dure", "typechecker.check")
# Several devices wherever the tests run: invariance to their number is tested, not skipped.
jax.config.update("jax_num_cpu_devices", max(2, os.cpu_count() or 1))

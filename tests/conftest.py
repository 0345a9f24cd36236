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

# More than half of the time goes into compiling. XLA's older code generator for fused loops takes about half of the
# newer one's time on small programs. It is chosen for the whole process and those that it starts, so
# that runs which are compared bit for bit are compiled alike. The compiler that users have makes the programs of
# the READMEs, pages and examples (test_documents.py) and of one test of law 6 (simulation/test_invariance.py).
OLDER = "--xla_cpu_use_fusion_emitters=false"
if OLDER not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {OLDER}".strip()

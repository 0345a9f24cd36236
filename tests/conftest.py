"""Annotations are executed: every call in the tests checks shapes and types (jaxtyping + beartype)."""

import sys
from types import ModuleType

from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

# As in static checking, an int may stand where a float is annotated.
checker = ModuleType("annotation_checker")
checker.check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # type: ignore[attr-defined]
sys.modules["annotation_checker"] = checker

install_import_hook("dure", "annotation_checker.check")

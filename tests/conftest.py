"""Annotations are executed: every call in the tests checks shapes and types (jaxtyping + beartype)."""

from jaxtyping import install_import_hook

install_import_hook("dure", "beartype.beartype")

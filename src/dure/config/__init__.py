"""A study in TOML: checked before anything starts, resolved, saved, and built into what `simulate` takes."""

from dure.config.build import Built, build
from dure.config.load import load, override, study
from dure.config.study import Study

__all__ = ["Built", "Study", "build", "load", "override", "study"]

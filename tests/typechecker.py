"""The type checker that the tests run under: beartype, where an int is a float as PEP 484 says (and mypy)."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))

"""Who takes part: samplers."""

from dure.population.samplers import (
    Cohort,
    Cyclic,
    Everyone,
    Once,
    Poisson,
    Population,
    Sampler,
    Uniform,
    Weighted,
)

__all__ = ["Cohort", "Cyclic", "Everyone", "Once", "Poisson", "Population", "Sampler", "Uniform", "Weighted"]

"""Who takes part: samplers."""

from dure.population.samplers import Cohort, Everyone, Poisson, Population, Sampler, Uniform, Weighted

__all__ = ["Cohort", "Everyone", "Poisson", "Population", "Sampler", "Uniform", "Weighted"]

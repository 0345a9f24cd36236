"""Federated statistics: what sums over every client's rows say about all rows together, in one round or a few.

A client sends sums over its rows (or what follows from them, such as its mean); nothing that belongs to a row leaves
it, and the results are those of the pooled rows to the rounding of float64. A sum over few rows says much about each:
`minimum_examples` and `minimum_clients` refuse to ask where there are too few. There is no noise in the answers.
"""

from dure.statistics.asking import Cost
from dure.statistics.bayes import NaiveBayes, gaussian_naive_bayes
from dure.statistics.clusters import KMeans, kmeans
from dure.statistics.components import PCA, pca
from dure.statistics.histograms import Histogram, Quantiles, histogram, quantiles
from dure.statistics.moments import Moments, moments
from dure.statistics.regression import LinearRegression, linear_regression

__all__ = [
    "PCA",
    "Cost",
    "Histogram",
    "KMeans",
    "LinearRegression",
    "Moments",
    "NaiveBayes",
    "Quantiles",
    "gaussian_naive_bayes",
    "histogram",
    "kmeans",
    "linear_regression",
    "moments",
    "pca",
    "quantiles",
]

"""Data sets, their partition among clients, and batches."""

from quped.data.catalog import DATASETS
from quped.data.samples import Dataset, Pair, Samples, Subset, TensorSamples, as_samples

__all__ = ["DATASETS", "Dataset", "Pair", "Samples", "Subset", "TensorSamples", "as_samples"]

"""Data sets, their partition among clients, and batches."""

from quped.data.catalog import DATASETS
from quped.data.samples import Data, Dataset, Samples, Subset, TensorSamples, as_samples

__all__ = ["DATASETS", "Data", "Dataset", "Samples", "Subset", "TensorSamples", "as_samples"]

"""Data sets, their partition among clients, and batches."""

from quped.data.catalog import DATASETS
from quped.data.given import Data, as_samples
from quped.data.samples import Dataset, Samples, Subset, TensorSamples

__all__ = ["DATASETS", "Data", "Dataset", "Samples", "Subset", "TensorSamples", "as_samples"]

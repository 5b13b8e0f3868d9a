"""Samples, whether a user's own or a data set's; their partition among clients; batches."""

from quped.data.from_user import Data, as_samples
from quped.data.samples import Dataset, Samples, Subset, TensorSamples, subset

__all__ = ["Data", "Dataset", "Samples", "Subset", "TensorSamples", "as_samples", "subset"]

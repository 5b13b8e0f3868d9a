"""The accuracies that the paper reports, in percent: mean and standard deviation over three runs.

Table by table: a line for each method, with mean and deviation for each column.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Figure(NamedTuple):
    """A number of the paper."""

    mean: float
    std: float | None
    """None where the paper gives none."""


def read(columns: str, lines: str) -> dict[str, dict[str, Figure]]:
    """Return the figures by column and method."""
    names = columns.split()
    table: dict[str, dict[str, Figure]] = {name: {} for name in names}
    for method, *numbers in (line.split() for line in lines.strip().splitlines()):
        for name, mean, std in zip(names, numbers[::2], numbers[1::2], strict=True):
            table[name][method] = Figure(float(mean), float(std))
    return table


# The table "CNN1 model at all clients".
CNN1 = read(
    "femnist cifar10",
    """
    fedavg      94.92 0.04  61.40 0.29
    local       94.86 0.93  71.57 0.28
    local-2bit  93.95 0.23  70.87 0.15
    local-1bit  93.00 0.50  69.05 0.13
    quped       97.31 0.12  75.06 0.40
    quped-2bit  96.73 0.27  74.58 0.44
    quped-1bit  95.15 0.21  71.20 0.33
    qupel-2bit  96.10 0.14  73.52 0.51
    qupel-1bit  94.06 0.28  71.01 0.32
    pfedme      96.60 0.37  73.66 0.65
    perfedavg   97.16 0.21  74.15 0.41
    fml         96.32 0.32  74.34 0.30
    """,
)

FIGURES: Mapping[str, Mapping[str, Mapping[str, Figure]]] = {
    # The table of centralized training.
    "table1": {
        "resnet20": {
            "float": Figure(92.05, None),
            "proxquant-1bit": Figure(90.69, None),
            "binaryrelax-1bit": Figure(87.82, None),
            "centers-1bit": Figure(91.17, None),
            "centers-2bit": Figure(91.45, None),
        },
        "resnet32": {
            "float": Figure(92.95, None),
            "proxquant-1bit": Figure(91.55, None),
            "binaryrelax-1bit": Figure(90.65, None),
            "centers-1bit": Figure(92.20, None),
            "centers-2bit": Figure(92.47, None),
        },
    },
    "cifar10-cnn1": {"cifar10": CNN1["cifar10"]},
    "femnist-cnn1": {"femnist": CNN1["femnist"]},
    # The table with client sampling.
    "sampling": read(
        "mnist femnist",
        """
        fedavg      92.87 0.05  91.30 0.43
        quped       98.17 0.32  94.93 0.25
        quped-2bit  98.01 0.15  94.56 0.18
        quped-1bit  97.58 0.23  92.52 0.64
        pfedme      97.79 0.03  93.70 0.39
        perfedavg   95.80 0.29  92.10 0.22
        fml         98.03 0.31  92.73 0.36
        """,
    ),
    # The table "heterogeneous resource distribution among clients".
    "heterogeneous": read(
        "femnist-cnn1-cnn2 femnist-2bit-cnn2 femnist-2bit-fp femnist-2bit-2bit "
        "cifar10-cnn1-cnn2 cifar10-2bit-cnn2 cifar10-2bit-fp cifar10-2bit-2bit",
        """
        local  93.41 0.82  92.70 1.09  93.56 0.38  91.11 0.23  72.81 0.03  72.42 0.17  71.23 0.08  72.15 0.47
        quped  97.44 0.14  97.01 0.05  96.96 0.15  96.64 0.31  75.50 0.25  75.08 0.18  74.84 0.30  74.64 0.27
        """,
    ),
    # Appendix, "CNN2 model at all clients".
    "cifar10-cnn2": read(
        "cifar10",
        """
        fedavg      62.49 0.42
        local       73.86 0.22
        local-2bit  73.24 0.14
        local-1bit  70.23 0.10
        quped       76.39 0.36
        quped-2bit  75.32 0.18
        quped-1bit  72.01 0.31
        pfedme      74.70 0.10
        perfedavg   74.60 0.48
        fml         75.74 0.56
        """,
    ),
    # Appendix, "3 classes accessed per client".
    "cifar10-3class": read(
        "cifar10",
        """
        fedavg      59.23 0.25
        local       78.03 0.59
        local-2bit  77.47 0.64
        local-1bit  75.89 0.66
        quped       80.30 0.60
        quped-2bit  79.31 0.74
        quped-1bit  77.23 0.58
        qupel-2bit  77.87 0.53
        qupel-1bit  74.46 0.73
        pfedme      78.22 0.91
        perfedavg   75.08 0.39
        fml         79.44 0.82
        """,
    ),
    # Appendix, "with and without center updates".
    "no-center-updates": read(
        "femnist",
        """
        quped             97.31 0.12
        quped-2bit        96.73 0.27
        quped-1bit        95.15 0.21
        quped-2bit-fixed  96.48 0.10
        quped-1bit-fixed  91.17 0.58
        """,
    ),
    # Appendix, "CNN1 model at all clients, on MNIST".
    "mnist": read(
        "3-classes 4-classes",
        """
        fedavg      98.64 0.10  98.65 0.09
        local       98.79 0.03  98.66 0.15
        local-2bit  98.53 0.07  98.37 0.11
        local-1bit  98.41 0.02  97.95 0.20
        quped       99.05 0.10  98.89 0.11
        quped-2bit  98.96 0.13  98.67 0.18
        quped-1bit  98.57 0.08  98.25 0.16
        qupel-2bit  98.95 0.12  98.61 0.19
        qupel-1bit  98.33 0.14  98.11 0.26
        pfedme      98.98 0.05  98.82 0.15
        perfedavg   98.82 0.05  98.93 0.09
        fml         99.00 0.06  98.84 0.13
        """,
    ),
    # Appendix, "Embedding Bag model at all clients, on AG News".
    "ag-news": read(
        "ag-news",
        """
        fedavg      83.04 0.60
        local       84.20 1.53
        local-2bit  82.68 0.34
        local-1bit  82.12 2.17
        quped       85.06 1.07
        quped-2bit  83.62 0.50
        quped-1bit  82.72 1.20
        """,
    ),
}
"""By table, column and method."""

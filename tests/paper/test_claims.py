"""Claims: differences by hand, and what counts as evidence."""

from pathlib import Path

import numpy as np
import pytest
from helpers.paper import one_run, over, write_record

from quped.paper.claims import Evidence, findings, groups, lines, markdown
from quped.paper.table import tables


def record(folder: Path, method: str, seed: int, accuracy: float, epochs: int | None = None) -> None:
    """Write a record of MNIST with 4 classes."""
    write_record(folder, one_run("mnist", method, seed, epochs), accuracy)


def evidence(folder: Path) -> list[Evidence]:
    """Return all evidence for any claim."""
    return [one for _, claims in findings(tables().values(), folder) for _, some in claims for one in some]


def test_every_claim_compares_rows_of_a_table() -> None:
    pairs = [pair for group in groups() for claim in group.claims for pair in claim.pairs]
    assert pairs
    for pair in pairs:
        assert any(set(pair) <= table.rows.keys() for table in tables().values()), pair


def test_differences_are_taken_at_equal_seeds(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.985, 0.980, 0.999)):
        record(tmp_path, "quped", seed, accuracy)
    for seed, accuracy in enumerate((0.980, 0.979)):
        record(tmp_path, "fedavg", seed, accuracy)
    (one,) = evidence(tmp_path)
    assert one.seeds == [0, 1]
    assert one.differences == pytest.approx([0.5, 0.1])
    assert one.mean == pytest.approx(0.3)
    # The records have no clients and no test samples: nothing is known of the error. The paper has 98.89 and 98.65.
    row = "| QuPeD beats FedAvg | MNIST, 4 classes | +0.30 | 2 | +0.24 | inconclusive |"
    assert markdown(findings(tables().values(), tmp_path)).splitlines()[-1] == row


@pytest.mark.parametrize(
    ("differences", "cell", "verdict"),
    [
        # One seed. Differences of 1, 2 and 3 points: mean 2, deviation 1, standard error 1 / sqrt 3.
        ([[1, 2, 3]], "+2.00 ± 0.58", "holds"),
        ([[-1, -2, -3]], "-2.00 ± 0.58", "fails"),
        ([[0, 1, 2]], "+1.00 ± 0.58", "inconclusive"),
        # Two seeds are pooled: 1, 3, 1, 3 have the deviation 2 / sqrt 3.
        ([[1, 3], [1, 3]], "+2.00 ± 0.58", "holds"),
        ([[3, 3, 3, 3], [-1, 0, -1, 0]], "+1.25 ± 0.67", "inconclusive"),
        ([[4, 4, 4, 4], [-1, 0, 0, -1]], "+1.75 ± 0.86", "holds, not at every seed"),
    ],
)
def test_two_standard_errors_over_clients_and_seeds_decide(
    differences: list[list[int]], cell: str, verdict: str, tmp_path: Path
) -> None:
    for seed, points in enumerate(differences):
        base = [0.9 - i / 100 for i in range(len(points))]  # it cancels: clients are paired
        better = over(*(b + p / 100 for b, p in zip(base, points, strict=True)))
        write_record(tmp_path, one_run("mnist", "quped-2bit", seed), better)
        write_record(tmp_path, one_run("mnist", "local-2bit", seed), over(*base))
    (one,) = evidence(tmp_path)
    pooled = np.concatenate(differences)
    assert one.error == pytest.approx(np.std(pooled, ddof=1) / np.sqrt(len(pooled)))
    assert (one.texts()[1], one.texts()[-1]) == (cell, verdict)
    assert one.verdict == verdict.partition(",")[0]


@pytest.mark.parametrize(("gain", "verdict"), [(0.01, "holds"), (0.007, "inconclusive")])
def test_a_single_network_is_judged_by_its_test_samples(gain: float, verdict: str, tmp_path: Path) -> None:
    """At 0.9 of 10,000 samples an error is 0.3 points, and that of a difference 0.42."""
    for method, accuracy in (("centers-1bit", 0.9 + gain), ("proxquant-1bit", 0.9)):
        write_record(tmp_path, one_run("table1", method), accuracy, test_samples={"model": 10_000})
    (one,) = evidence(tmp_path)
    assert one.error == pytest.approx(0.42, abs=0.01)
    assert one.verdict == verdict


def test_a_row_that_reads_the_record_of_another_is_compared(tmp_path: Path) -> None:
    own = over(0.9, 0.8)
    write_record(tmp_path, one_run("mnist", "fedavg"), over(0.5, 0.4), accuracy_own_classes=own)
    write_record(tmp_path, one_run("mnist", "quped"), over(0.7, 0.7))
    found = {one.worse.name: one.mean for one in evidence(tmp_path)}
    assert found == pytest.approx({"fedavg": 25.0, "fedavg-own": -15.0})


def test_runs_of_equal_length_are_compared(tmp_path: Path) -> None:
    for method, accuracies in (("quped-1bit-ste", (0.60, 0.68)), ("quped-1bit", (0.61,))):
        for epochs, accuracy in zip((20, 40), accuracies, strict=False):
            record(tmp_path, method, 0, accuracy, epochs)
    (one,) = evidence(tmp_path)
    assert (one.where, round(one.mean, 2)) == ("MNIST, 4 classes, 1 bit [20 of 50 epochs]", -1.0)
    record(tmp_path, "quped-1bit", 0, 0.65, 40)
    (one,) = evidence(tmp_path)
    assert (one.where, round(one.mean, 2)) == ("MNIST, 4 classes, 1 bit [40 of 50 epochs]", 3.0)
    for method in ("quped-1bit-ste", "quped-1bit"):
        record(tmp_path, method, 0, 0.7)
    (one,) = evidence(tmp_path)
    assert one.where == "MNIST, 4 classes, 1 bit"


def test_runs_on_other_data_are_not_compared(tmp_path: Path) -> None:
    record(tmp_path, "quped", 0, 0.85)
    write_record(tmp_path, one_run("mnist", "fedavg"), 0.8, data="extract")
    assert evidence(tmp_path) == []


def test_mixed_clients_have_their_own_claim(tmp_path: Path) -> None:
    for method, accuracy in (("quped", 0.75), ("local", 0.72)):
        write_record(tmp_path, one_run("heterogeneous", method), accuracy)
    ((_, claims),) = findings(tables().values(), tmp_path)
    ((claim, (one,)),) = claims
    assert claim.mixed
    assert one.differences == pytest.approx([3.0])


def test_a_claim_is_named_once_and_its_peers_by_title(tmp_path: Path) -> None:
    for method in ("quped-warmup", "fedavg", "fml"):
        record(tmp_path, method, 0, 0.9)
    ((_, claims),) = findings(tables().values(), tmp_path)
    assert [line[:2] for line in lines(claims)] == [
        ("Ours: with warm-up, QuPeD beats its peers", "MNIST, 4 classes, Federated Mutual Learning"),
        ("", "MNIST, 4 classes, FedAvg"),
    ]


def test_peers_with_one_title_are_told_apart_by_their_bits(tmp_path: Path) -> None:
    for method in ("qupedplus-2bit", "fedavg-momentum", "fedavgft-momentum", "fedavgft-momentum-2bit"):
        record(tmp_path, method, 0, 0.9)
    peers = [one.where for one in evidence(tmp_path) if one.better.name == "qupedplus-2bit"]
    assert peers == [
        "MNIST, 4 classes, FedAvg, server momentum",
        "MNIST, 4 classes, FedAvg, server momentum, then fine-tuning, full precision",
        "MNIST, 4 classes, FedAvg, server momentum, then fine-tuning, 2 bits",
    ]

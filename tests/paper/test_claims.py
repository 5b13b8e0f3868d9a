"""Claims: differences by hand, and what counts as evidence."""

from pathlib import Path

import pytest
from helpers.paper import one_run, write_record

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
    # Mean 0.3, sample deviation 0.4 / sqrt 2; the paper has 98.89 and 98.65.
    row = "| QuPeD beats FedAvg | MNIST, 4 classes | +0.30 ± 0.28 | 2 | +0.24 | holds |"
    assert markdown(findings(tables().values(), tmp_path)).splitlines()[-1] == row


@pytest.mark.parametrize(
    ("accuracies", "verdict"),
    [
        ([0.984], "holds"),
        ([0.982], "inconclusive"),
        ([0.976], "fails"),
        ([0.981, 0.9801], "holds"),
        ([0.990, 0.979], "inconclusive"),
        ([0.9799, 0.970], "fails"),
    ],
)
def test_one_seed_decides_by_its_size_and_several_by_their_sign(
    accuracies: list[float], verdict: str, tmp_path: Path
) -> None:
    for seed, accuracy in enumerate(accuracies):
        record(tmp_path, "quped-2bit", seed, accuracy)
        record(tmp_path, "local-2bit", seed, 0.980)
    (one,) = evidence(tmp_path)
    assert one.verdict == verdict


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

"""The benchmark measures, and its numbers fit together."""

import pytest
import torch

from quped._bench import Load, compare, measure, plain_round, run_round, sgemm_peak, step_flops
from quped._bench_files import measure_files
from quped._bench_networks import NETWORKS, ours, plain_cnn1
from quped.algorithms import FedAvg, QuPeD
from quped.models import cnn1
from quped.simulation.engines import EngineChoice

SMALL = Load(clients=3, steps=2, batch_size=5, samples=10)


@pytest.mark.slow
def test_the_numbers_fit_together() -> None:
    """Ratios are those of the rates; every rate is there."""
    numbers = measure(SMALL, turns=2, workers=2)
    rates = numbers["rates"]
    assert set(rates) == {"plain_1thread", "plain_2threads", "inline", "processes", "processes_quped_2bit"}
    assert all(rate > 0 for rate in rates.values())
    for ratio, other in (
        ("ratio_vs_plain_1thread", "plain_1thread"),
        ("ratio_vs_plain_2threads", "plain_2threads"),
        ("quped_over_fedavg", "processes_quped_2bit"),
    ):
        # Rates are rounded to a tenth, which counts where the machine is busy and they are small.
        least = (rates["processes"] - 0.05) / (rates[other] + 0.05) - 0.001
        most = (rates["processes"] + 0.05) / max(rates[other] - 0.05, 1e-9) + 0.001
        assert least <= numbers[ratio] <= most
    assert 0 < numbers["fraction_of_peak"] < 1
    assert 0 < numbers["evaluation_share"] < 1
    hours = numbers["hours_for_a_paper_run"]["fedavg"]
    assert 500_000 / (rates["processes"] + 0.05) / 3600 - 0.01 <= hours
    assert hours <= 500_000 / (rates["processes"] - 0.05) / 3600 + 0.01


def test_the_plain_loop_leaves_the_number_of_threads() -> None:
    """A contestant does not change the conditions of the next."""
    before = torch.get_num_threads()
    plain_round(SMALL, SMALL.data(), threads=1)
    sgemm_peak(threads=1, size=64)
    assert torch.get_num_threads() == before


def test_the_plain_network_is_the_same_network() -> None:
    """With the same weights it gives the same outputs: the loops compute the same."""
    plain, ours = plain_cnn1(), cnn1((3, 32, 32), 10)
    plain.load_state_dict(dict(zip(plain.state_dict(), ours.state_dict().values(), strict=True)))
    images = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(plain(images), ours(images))


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_network_of_the_benchmark_runs(name: str) -> None:
    """In the plain loop and in an engine, at full precision and at 2 bits."""
    load = Load(name, clients=1, steps=1, batch_size=4, samples=4, tests=4)
    data = load.data()
    plain_round(load, data, threads=1)
    for algorithm, bits in ((FedAvg(), 32), (QuPeD(), 2)):
        setup = load.setup(algorithm, bits, data)
        run_round(EngineChoice("inline").open(setup), setup)
    assert step_flops(load) > 1e6
    assert ours(name)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_an_engine_is_measured_beside_the_process_engine() -> None:
    numbers = compare(SMALL, turns=2, name="inline", workers=1)
    rates = numbers["rates"]
    assert set(rates) == {"inline", "processes"}
    assert numbers["ratio_vs_processes"] == pytest.approx(rates["inline"] / rates["processes"], rel=0.02)


def test_operations_are_counted() -> None:
    """CNN1 on a 32x32 image: 653,280 multiply-adds forward, so between two and three times that and back."""
    forward = 2 * (28 * 28 * 6 * 75 + 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10)
    flops = step_flops(Load(batch_size=1))
    assert 2 * forward < flops < 3 * forward


@pytest.mark.parametrize(
    ("network", "most"), [("cnn1", 1.03), ("mlp", 1.03), pytest.param("resnet20", 1.0, marks=pytest.mark.slow)]
)
def test_files_are_as_small_as_their_information(network: str, most: float) -> None:
    sizes = measure_files([network])
    assert len(sizes) == 4
    for name, case in sizes.items():
        assert case["file"] <= most * case["floor"] < case["float32"], name

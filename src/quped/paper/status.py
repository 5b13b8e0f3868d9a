"""How much of the paper's tables has been run, and an estimate of the time that is left."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from quped.paper.execute import scratch_folder
from quped.paper.records import Record, find_record, has_other_data, input_checksums
from quped.paper.runs import PaperRun
from quped.simulation.schedule import DEFAULT_BATCH_SIZE

USUAL_RATE = 600.0
"""Steps of FedAvg by one client per second, on a machine without records."""


class Status(NamedTuple):
    """How many of some runs are done."""

    done: int
    begun: int
    """Missing runs that are under way, or were interrupted."""
    missing: list[PaperRun]
    impossible: list[PaperRun]
    """Runs without a record whose data are stored in another size than the column's."""
    rate: float
    """Of the runs that are done, in steps of FedAvg per second."""

    @property
    def seconds_left(self) -> float:
        """An estimate of the time that the missing runs take."""
        return sum(work(run) for run in self.missing) / self.rate


def status(
    runs: Sequence[PaperRun], folder: Path, warm_start: Path | None = None, usual_rate: float = USUAL_RATE
) -> Status:
    """Return the status of some runs; `usual_rate` is the speed to assume if none is done.

    A run on other data than the fetched ones counts as missing. With `warm_start`, so does a network that started
    from other weights than the ones in that folder.
    """

    def record_of(run: PaperRun) -> Record | None:
        record = find_record(run, folder)
        if record is None or (run.recipe is not None and warm_start is None):
            return record
        return find_record(run, folder, input_checksums(run, warm_start))

    records = [(run, record_of(run)) for run in runs]
    done = [(work(run), float(record["seconds"])) for run, record in records if record is not None]
    steps, seconds = sum(steps for steps, _ in done), sum(seconds for steps, seconds in done if steps)
    without = [run for run, record in records if record is None]
    missing, impossible = [[run for run in without if has_other_data(run) is other] for other in (False, True)]
    begun = sum(any(folder.glob(scratch_folder(run, "*"))) for run in missing)
    return Status(len(done), begun, missing, impossible, steps / seconds if steps else usual_rate)


def work(run: PaperRun) -> float:
    """Return the size of a run, in steps of FedAvg by one client."""
    clients = sum(group.count for group in run.column.clients) or 1
    options = run.config if run.recipe is not None else run.config["training"]
    batch_size = options["batch_size"] or DEFAULT_BATCH_SIZE
    steps = options.get("steps_per_epoch") or run.column.samples / clients / batch_size
    active = options.get("clients_per_round") or clients
    return float(options["epochs"] * steps * active * run.row.cost * run.column.cost)

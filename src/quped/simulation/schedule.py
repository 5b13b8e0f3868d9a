"""When what happens in a run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from quped.errors import InvalidValueError
from quped.simulation.options import TrainingOptions
from quped.typing import Clock, Phase

DEFAULT_BATCH_SIZE = 25


@dataclass(frozen=True)
class Schedule:
    """Rounds of `local_steps` steps; epochs, phases and learning rates change between rounds."""

    epochs: int
    finetune_epochs: int
    steps_per_epoch: int
    local_steps: int
    lr: float
    lr_decay: float
    clients_per_round: int
    evaluate_every: int
    stretch: float = 1.0
    """Epochs of the schedules of learning rate and lambda that pass in one epoch: above 1 in a shortened run."""
    evaluate_clients: int | None = None
    """How many clients are evaluated; None: all with test samples."""

    @classmethod
    def of(cls, options: TrainingOptions, sizes: Sequence[int], *, quantizes: bool) -> "Schedule":
        """Return the schedule for clients with so many samples; `quantizes` says whether any client is quantized."""
        steps = options.steps_per_epoch
        if steps is None:
            steps = math.ceil(sum(sizes) / (len(sizes) * (options.batch_size or DEFAULT_BATCH_SIZE)))
        sampled = len(sizes) if options.clients_per_round is None else options.clients_per_round
        if sampled > len(sizes):
            raise InvalidValueError(
                f"The clients_per_round must be at most {len(sizes)}, the number of clients, got {sampled}."
            )
        schedule = cls(
            epochs=int(options.epochs),
            finetune_epochs=int(options.finetune_epochs or 0),
            steps_per_epoch=int(steps),
            local_steps=int(options.local_steps),
            lr=float(options.lr),
            lr_decay=float(options.lr_decay),
            clients_per_round=int(sampled),
            evaluate_every=int(options.evaluate_every),
            stretch=1.0 if options.schedule_epochs is None else options.schedule_epochs / options.epochs,
            evaluate_clients=None if options.evaluate_clients is None else int(options.evaluate_clients),
        )
        if options.finetune_epochs is None and quantizes:
            return schedule._with_finetuning(max(1, round(options.epochs / 6)))
        if schedule.finetune_epochs and schedule.clock(schedule.rounds - 1).phase is not Phase.FINETUNE:
            raise InvalidValueError(
                f"No round begins in the last {schedule.finetune_epochs} epochs, in which fine-tuning was asked for: "
                "use fewer local_steps, or more epochs."
            )
        return schedule

    def _with_finetuning(self, epochs: int) -> "Schedule":
        """Return this schedule with so many epochs of fine-tuning, at least the last of several rounds."""
        last = self.epoch(self.rounds - 1)
        return replace(self, finetune_epochs=max(epochs, self.epochs - last) if last else 0)

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return math.ceil(self.epochs * self.steps_per_epoch / self.local_steps)

    def steps(self, round_: int) -> int:
        """Return the number of steps of a round: `local_steps`, or what is left of the run in the last one."""
        return min(self.local_steps, self.epochs * self.steps_per_epoch - round_ * self.local_steps)

    def epoch(self, round_: int) -> int:
        """Return the epoch in which a round begins."""
        return round_ * self.local_steps // self.steps_per_epoch

    def clock(self, round_: int) -> Clock:
        """Return the clock of a round."""
        epoch = self.epoch(round_)
        phase = Phase.TRAIN if epoch < self.epochs - self.finetune_epochs else Phase.FINETUNE
        t = round_ * self.local_steps * self.stretch // self.steps_per_epoch
        progress = round_ * self.local_steps / (self.epochs * self.steps_per_epoch)
        return Clock(round_, epoch, phase, t, self.lr * self.lr_decay**t, self.lr, progress)

    def evaluates(self, round_: int) -> bool:
        """Say whether a round ends with an evaluation: the last one does, and the last of every n-th epoch."""
        here, next_ = (self.epoch(r) // self.evaluate_every for r in (round_, round_ + 1))
        return here != next_ or round_ == self.rounds - 1

"""Apple's pfl-research: FederatedAveraging on the simulated backend, in processes that torchrun has started."""

from functools import partial

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, distributed, nn
from turns import LOAD, LR, WEIGHT_DECAY, take_turns

from quped._bench_networks import NETWORKS

NEVER = 1_000_000
"""Rounds: more than there are turns."""


class Network(nn.Module):
    """A network with what pfl-research asks of one."""

    def __init__(self) -> None:
        """Build the layers."""
        super().__init__()
        self.layers = NETWORKS[LOAD.network]()

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return what is minimised."""
        return nn.functional.cross_entropy(self.layers(inputs), labels)

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Return what is measured in an evaluation: nothing."""
        return {}


class Turns(TrainingProcessCallback):
    """Wait for the next turn between two rounds. The first process asks, the others wait for it."""

    def __init__(self) -> None:
        """Ask for the first turn when training begins."""
        self._next_round = take_turns()

    def _over(self) -> bool:
        over = torch.tensor(int(distributed.get_rank() == 0 and not self._next_round()))
        distributed.broadcast(over, src=0)
        return bool(over)

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Wait for the first turn."""
        self._over()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Wait for the next turn, or end."""
        return self._over(), Metrics()


def main() -> None:
    """Play rounds."""
    torch.set_num_threads(1)
    users = {i: Dataset((samples.inputs, samples.labels), str(i)) for i, samples in enumerate(LOAD.data())}
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    network = Network()
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=NEVER,
            evaluation_frequency=NEVER,
            train_cohort_size=LOAD.clients,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        PyTorchModel(network, partial(torch.optim.SGD, weight_decay=WEIGHT_DECAY), optimizer),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=LOAD.batch_size),
        callbacks=[Turns()],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()

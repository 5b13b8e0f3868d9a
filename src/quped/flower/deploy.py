"""A client's packed file from what its node keeps, without a server."""

from pathlib import Path
from typing import NamedTuple

from quped._evaluate import Score
from quped.algorithms import Deployed
from quped.export import to_bytes
from quped.flower.node import Node, deployed, score_of
from quped.flower.store import NODE, Store, find_run
from quped.records import read_json
from quped.simulation.client_round import one_thread
from quped.simulation.files import packed_model


class DeployedClient(NamedTuple):
    """A client's model, and what is known of it."""

    client: str
    round: int
    """The last round that it took part in, from 0."""
    rounds: int
    """Of the whole run."""
    model: Deployed
    score: Score | None
    """On the node's own test samples; None without any."""
    content: bytes
    """The packed file."""


def deployed_client(folder: Path, app: Path | None = None) -> DeployedClient:
    """Return the model of the client whose states are in a folder; `app` is the app's folder, if it has moved."""
    run = find_run(folder)
    about = read_json(run / NODE, "client", "app", "module", "node", "seed", "options", sealed=True)
    node = Node.start({"module": about["module"]}, about["node"], app or Path(about["app"]))
    # Without its lock, which a round under way holds to its end: files are replaced as a whole.
    held = Store(run.parent, run.name).latest()
    with one_thread():
        setup = node.setup(about["seed"], about["options"])
        client = setup.clients[0]
        model = deployed(setup, client, held)
        score = score_of(setup, client, model)
    packed = packed_model(setup, client, model, None if score is None else score.accuracy)
    return DeployedClient(client.name, held.round, setup.schedule.rounds, model, score, to_bytes(packed))

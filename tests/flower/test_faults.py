"""What nodes and servers do when something fails or lies: over a grid in this process, so in a moment."""

import json
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flower.test_contract import NAMES, assert_equals_inline, inline, make_grid
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from helpers.fake_grid import Change, FakeGrid, FakeNode

from quped import _tree
from quped.errors import RunError
from quped.flower.deploy import deployed_client
from quped.flower.node import Node
from quped.flower.server import serve
from quped.flower.store import Store, find_run
from quped.flower.wire import FLAT, TENSORS, VALUES, flatten, form_of, pack, read_request, unpack
from quped.models import build
from quped.records import Checkpoints, RunRecord

Grids = Callable[..., FakeGrid]


@pytest.fixture
def grids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grids:
    return lambda name="quped", **more: make_grid(tmp_path, monkeypatch, name, **more)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    yield
    logging.getLogger("quped").setLevel(logging.NOTSET)


class Failing:
    """Does something else than to answer, as long as there is something on a list."""

    def __init__(self, *instead: Callable[[], RecordDict | Error | None], after: bool = False) -> None:
        self._instead, self._after = list(instead), after

    def __call__(self, message: Message, answer: Callable[[], RecordDict]) -> RecordDict | Error | None:
        if message.metadata.message_type != MessageType.TRAIN or not self._instead:
            return answer()
        if self._after:
            answer()  # the round is computed and kept, but the answer is lost
        return self._instead.pop(0)()


def crash() -> Error:
    return Error(8, "the ClientApp has crashed")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_node_that_crashes_is_asked_again(grids: Grids, tmp_path: Path, after: bool) -> None:
    grid = grids()
    grid.nodes[11].change = Failing(crash, crash, after=after)
    serve(grid, grid.run_config)
    assert_equals_inline(tmp_path, inline("quped"))


def test_a_node_that_goes_away_is_waited_for(grids: Grids, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it was looked for, it may answer when it is back."""
    grid = grids(retries=1)
    away, looks = grid.nodes[11], 0

    def leave() -> Error:
        del grid.nodes[11]
        return crash()

    grid.nodes[11].change = Failing(leave)
    there = grid.get_nodes

    def get_nodes() -> Any:
        nonlocal looks
        looks += 11 not in grid.nodes
        if looks > 20:
            grid.nodes[11] = away
        return there()

    monkeypatch.setattr(grid, "get_nodes", get_nodes)
    serve(grid, grid.run_config)
    assert looks > 20
    assert_equals_inline(tmp_path, inline("quped"))


class KilledError(Exception):
    pass


def kill() -> RecordDict:
    raise KilledError


def test_a_server_that_is_killed_continues_from_its_record(grids: Grids, tmp_path: Path) -> None:
    """Also if it had asked a round that it does not remember, and if curves or states are damaged."""
    for name in ("fedavg", "quped"):
        folder = tmp_path / name
        folder.mkdir()
        grid = grids(name, record=str(folder / "record"))
        for number, client in enumerate(NAMES, start=10):
            grid.nodes[number] = FakeNode({"name": client, "state": str(folder / "state" / client)}, registered=client)
        asked = 0

        def change(message: Message, answer: Callable[[], RecordDict]) -> RecordDict:
            nonlocal asked
            asked += message.metadata.message_type == MessageType.TRAIN
            content = answer()
            if asked in (2, 5):
                asked += 1
                raise KilledError
            return content

        grid.nodes[12].change = change
        for _ in range(2):
            with pytest.raises(KilledError):
                serve(grid, grid.run_config)
        (folder / "record" / "curves.jsonl").write_text("{}\n")
        newest = max((folder / "state" / "c0").glob("*/round-*"))
        newest.write_bytes(newest.read_bytes()[:-3])
        serve(grid, grid.run_config)
        assert_equals_inline(folder, inline(name))


def test_a_finished_or_another_run_is_not_continued(grids: Grids, tmp_path: Path) -> None:
    grid = grids(epochs=2, finetune_epochs=0)
    grid.nodes[10].change = Failing(kill)
    with pytest.raises(KilledError):
        serve(grid, grid.run_config)
    with pytest.raises(RunError, match=r"holds a run with other asked.*'lr': 0.1.*name another folder"):
        serve(grid, {**grid.run_config, "lr": 0.2})
    serve(grid, grid.run_config)
    with pytest.raises(RunError, match="finished: name another folder"):
        serve(grid, grid.run_config)


def values_of(content: RecordDict) -> ConfigRecord:
    record = content[VALUES]
    assert isinstance(record, ConfigRecord)
    return record


def lies(**changes: Any) -> Change:
    """Return a node whose updates have other values."""

    def change(message: Message, answer: Callable[[], RecordDict]) -> RecordDict:
        content = answer()
        if message.metadata.message_type == MessageType.TRAIN:
            values_of(content).update(changes)
        return content

    return change


def tensors(edit: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Change:
    """Return a node whose updates have other numbers."""

    def change(message: Message, answer: Callable[[], RecordDict]) -> RecordDict:
        content = answer()
        if message.metadata.message_type != MessageType.TRAIN:
            return content
        values = values_of(content)
        numbers = edit(unpack(content).flat.view(np.float32).copy())
        flat = numbers.view(np.uint8) if numbers.dtype == np.float32 else numbers
        return RecordDict({VALUES: values, TENSORS: ArrayRecord({FLAT: Array(flat)})})

    return change


def forms(edit: Callable[[list[Any]], list[Any]]) -> Change:
    """Return a node that says other things of its tensors."""

    def change(message: Message, answer: Callable[[], RecordDict]) -> RecordDict:
        content = answer()
        if message.metadata.message_type == MessageType.TRAIN:
            values = values_of(content)
            values.update({"form": json.dumps([edit(row) for row in json.loads(values["form"])])})
        return content

    return change


def arrays(data: bytes) -> Change:
    """Return a node whose array is another one than it says."""
    array = Array(np.zeros(8, np.uint8))
    array.data = data

    def change(message: Message, answer: Callable[[], RecordDict]) -> RecordDict:
        content = answer()
        if message.metadata.message_type != MessageType.TRAIN:
            return content
        return RecordDict({VALUES: content[VALUES], TENSORS: ArrayRecord({FLAT: array})})

    return change


def more(message: Message, answer: Callable[[], RecordDict]) -> RecordDict:
    content = answer()
    records = {VALUES: content[VALUES], TENSORS: content[TENSORS], "x": ConfigRecord({"x": 1})}
    return RecordDict(records) if message.metadata.message_type == MessageType.TRAIN else content


LIES: dict[str, tuple[Change, str]] = {
    "nan": (tensors(lambda x: np.where(np.arange(len(x)) == 3, np.float32(np.nan), x)), "NaN, infinity"),
    "infinity": (tensors(lambda x: np.where(np.arange(len(x)) == 3, np.float32(np.inf), x)), "NaN, infinity"),
    "loss": (lies(loss=math.nan), "training loss is nan"),
    "names": (forms(lambda row: [row[0] + "x", *row[1:]]), "other tensors than expected"),
    "shapes": (forms(lambda row: [*row[:2], *row[:1:-1]]), "of shape"),
    "dtypes": (forms(lambda row: [row[0], "int32", *row[2:]]), "torch.int32"),
    "larger values": (tensors(lambda x: 100 * x + 100), "max_ratio"),
    "larger size": (tensors(lambda x: np.tile(x, 100)), "bytes of tensors"),
    "missing bytes": (tensors(lambda x: x[:-1]), "bytes of tensors"),
    "name": (lies(client="c0"), "its client is 'c0', not 'c2'"),
    "round": (lies(round=7), "its round is 7"),
    "accuracy": (lies(accuracy=2.0), "its accuracy is 2.0"),
    "form": (lies(form="[[" * 100), "cannot be read"),
    "sizes": (forms(lambda row: [*row, 0, 10**30]), "cannot be read"),
    "records": (more, "something else than an answer"),
    "no array": (arrays(b""), "its array cannot be read"),
    "no header": (arrays(b"PK\x03\x04"), "its array cannot be read"),
    "doubles": (arrays(Array(np.zeros(8)).data), "is float64 of shape"),
}


@pytest.mark.parametrize("kind", LIES)
def test_a_lie_is_refused_and_named(grids: Grids, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    """The others get what they get without the liar."""
    change, reason = LIES[kind]
    results: list[dict[str, Any] | None] = []
    for liar in (change, Failing(*[crash] * 99)):
        grid = grids(epochs=2, finetune_epochs=0, quorum=2, retries=0, record=str(tmp_path / f"record{len(results)}"))
        for number, client in enumerate(NAMES, start=10):
            state = str(tmp_path / str(len(results)) / client)
            grid.nodes[number] = FakeNode({"name": client, "state": state}, registered=client)
        grid.nodes[12].change = liar
        serve(grid, grid.run_config)
        results.append(RunRecord(tmp_path / f"record{len(results)}").finished())
    assert any("'c2'" in line and reason in line for line in caplog.messages), caplog.messages
    (a, b) = results
    assert a is not None
    assert b is not None
    for client in ("c0", "c1"):
        assert a["accuracy"]["per_client"][client] == b["accuracy"]["per_client"][client]
        left, right = (deployed_client(tmp_path / run / client).model for run in ("0", "1"))
        for (path, x), (_, y) in zip(_tree.items(left), _tree.items(right), strict=True):
            assert torch.equal(x, y), path


def test_a_lie_stops_a_run_that_needs_everybody(grids: Grids) -> None:
    grid = grids()
    grid.nodes[11].change = LIES["nan"][0]
    with pytest.raises(RunError, match=r"Round 1 has 2 of the 3 updates .*'c1': .*NaN.*quorum"):
        serve(grid, grid.run_config)


def test_a_bound_on_updates_is_kept_and_enforced(grids: Grids, tmp_path: Path) -> None:
    grid = grids(max_update_norm=0.01, record=str(tmp_path / "lie"))
    grid.nodes[11].change = tensors(lambda x: x + np.float32(0.01))
    with pytest.raises(RunError, match="above max_update_norm"):
        serve(grid, grid.run_config)
    grid = grids(max_update_norm=0.01)
    serve(grid, grid.run_config)
    assert_equals_inline(tmp_path, inline("quped", max_update_norm=0.01))


def test_somebody_elses_name_is_refused(grids: Grids, caplog: pytest.LogCaptureFixture) -> None:
    """A node whose key is registered as c2 says to be c0; an unknown one says so, too."""
    grid = grids(join_seconds=0.3)
    grid.nodes[12] = FakeNode({**grid.nodes[10].config}, registered="c2")
    grid.nodes[13] = FakeNode({**grid.nodes[10].config})
    grid.nodes[14] = FakeNode({**grid.nodes[10].config}, registered="mallory")
    grid.nodes[15] = FakeNode({**grid.nodes[11].config}, registered="c1")
    with pytest.raises(RunError, match=r"c2 have not joined"):
        serve(grid, grid.run_config)
    told = "\n".join(caplog.messages)
    assert "Node 12 is refused: it says to be 'c0', but its key is registered as 'c2'" in told
    assert "Node 13 is refused: it says to be 'c0', which is another node" in told
    assert "Node 15 is refused: another node is registered as 'c1'" in told
    assert "Node 14 is refused: its key is registered as 'mallory', which is none of c0, c1, c2" in told


@pytest.mark.parametrize(
    "lie",
    [
        {"inputs": '[["float32", 65536, 65536, 65536, 65536]]'},
        {"inputs": '[["float32", 2, 99]]'},
        {"inputs": '[["float32", 2, 99], 1]'},
        {"inputs": "[" * 10**6},
        {"samples": 0},
        {"samples": "many"},
        {"bits": "[]"},
    ],
    ids=["overflow", "misfit", "no list", "deep", "none", "text", "no bits"],
)
def test_a_node_that_lies_about_itself_is_refused(
    grids: Grids, caplog: pytest.LogCaptureFixture, lie: dict[str, Any]
) -> None:
    """And the run goes on without it."""

    def change(message: Message, answer: Callable[[], RecordDict]) -> RecordDict:
        content = answer()
        if message.metadata.message_type == MessageType.QUERY:
            values_of(content).update(lie)
        return content

    grid = grids(epochs=1, finetune_epochs=0, quorum=2, join_seconds=0.1, retries=0)
    grid.nodes[12].change = change
    serve(grid, grid.run_config)
    assert any("Node 12 is refused: " in line for line in caplog.messages), caplog.messages


def test_a_node_may_join_late(grids: Grids, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It begins with the global model of the time."""
    grid = grids(quorum=2, join_seconds=0.1, retries=0)
    late = grid.nodes.pop(12)
    seen: list[int] = []

    def change(message: Message, answer: Callable[[], RecordDict]) -> RecordDict:
        if message.metadata.message_type == MessageType.TRAIN:
            seen.append(read_request(message.content).round)
            if seen[-1] == 3:
                grid.nodes[12] = late
        return answer()

    grid.nodes[10].change = change
    serve(grid, grid.run_config)
    result = RunRecord(tmp_path / "record").finished()
    assert result is not None
    assert set(result["accuracy"]["per_client"]) == set(NAMES)
    told = "\n".join(caplog.messages)
    assert "The run begins without c2" in told
    assert "goes on without 'c2': its node is not there" in told
    assert "'c2' is here" in told


def come_in(grid: FakeGrid, round_: int, crash: int | None = None) -> None:
    """Let node 12 appear while a round is under way, and the server die in a later one."""
    late = grid.nodes.pop(12)

    def change(message: Message, answer: Callable[[], RecordDict]) -> RecordDict:
        nonlocal crash
        content = answer()
        if message.metadata.message_type == MessageType.TRAIN:
            asked = read_request(message.content).round
            if asked == round_:
                grid.nodes[12] = late
            if asked == crash:
                crash = None
                raise KilledError
        return content

    for node in (late, *grid.nodes.values()):
        node.change = change


@pytest.mark.parametrize("more", [{}, {"clients_per_round": 1}, {"quorum": 1}], ids=["all", "sampled", "quorum"])
@pytest.mark.parametrize("round_", [2, 6], ids=["training", "fine-tuning"])
def test_a_node_that_the_app_does_not_list_may_join(
    grids: Grids, tmp_path: Path, caplog: pytest.LogCaptureFixture, round_: int, more: dict[str, Any]
) -> None:
    """It takes part from the next round on; a server that dies afterwards continues with it, bit for bit."""
    for folder, crash in (("calm", None), ("killed", 8)):
        grid = grids(listed=NAMES[:2], newcomers=True, record=str(tmp_path / folder / "record"), **more)
        for number, client in enumerate(NAMES, start=10):
            state = str(tmp_path / folder / "state" / client)
            grid.nodes[number] = FakeNode({"name": client, "state": state}, registered=client)
        come_in(grid, round_, crash)
        if crash is not None:
            with pytest.raises(KilledError):
                serve(grid, grid.run_config)
        serve(grid, {**grid.run_config, "newcomers": crash is None})
        asked = [read_request(m.content).round for m in grid.requests if is_for(m, 12)]
        assert not asked or min(asked) >= round_ + 2  # its introduction takes the round after
        assert asked or "clients_per_round" in more
    assert caplog.messages.count(f"'c2' joins the run in round {round_ + 3}.") == 2
    calm, killed = (RunRecord(tmp_path / folder / "record").finished() for folder in ("calm", "killed"))
    assert calm is not None
    assert killed is not None
    assert {client["name"] for client in calm["clients"]} == set(NAMES)
    assert calm["accuracy"] == killed["accuracy"]
    for client in NAMES:
        left, right = (deployed_client(tmp_path / folder / "state" / client).model for folder in ("calm", "killed"))
        for (path, x), (_, y) in zip(_tree.items(left), _tree.items(right), strict=True):
            assert torch.equal(x, y), path


def is_for(message: Message, node: int) -> bool:
    """Say whether a message asks a node for a round."""
    return message.metadata.dst_node_id == node and message.metadata.message_type == MessageType.TRAIN


def test_what_is_sent_is_payload_and_metrics(grids: Grids, tmp_path: Path) -> None:
    """No personal number is in any message: neither a tensor of a personal state, nor a record of another name."""
    grid = grids()
    serve(grid, grid.run_config)
    known = {"client", "run", "round", "loss", "form", "final", "accuracy", "own_classes", "loading", "seconds"}
    known |= {"bytes_file", "bytes_packed", "bytes_float32"}
    introduced = {"client", "samples", "network", "bits", "parameters", "inputs", "machine", "loading", "seconds"}
    trained = 0
    for reply in grid.replies:
        values, flat = unpack(reply.content)
        if reply.metadata.message_type.startswith(MessageType.TRAIN):
            trained += 1
            assert values.keys() <= known
            names = [row[0] for row in json.loads(values["form"])]
            assert all(name.startswith(("w.params/", "w.buffers/")) for name in names), names
            for client in NAMES:
                for _, leaf in _tree.items(personal_of(tmp_path / "state" / client)):
                    if leaf.numel() > 4:
                        assert leaf.numpy().tobytes() not in flat.tobytes()
        else:
            assert len(flat) == 0
            assert values.keys() == introduced
    assert trained == 27


def personal_of(folder: Path) -> Any:
    """Return the tensors of a node's personal state."""
    run = find_run(folder)
    held = Store(run.parent, run.name).latest()
    return {path: leaf for path, leaf in held.tensors.items() if path.startswith("personal") and "initial" not in path}


def test_a_round_that_is_asked_for_twice_gives_the_same_answer(grids: Grids) -> None:
    grid = grids()
    twice: list[tuple[bytes, bytes]] = []

    def change(message: Message, answer: Callable[[], RecordDict]) -> RecordDict:
        first = answer()
        if message.metadata.message_type == MessageType.TRAIN:
            second = answer()
            same = {"loading": 0, "seconds": 0}
            assert {**values_of(first), **same} == {**values_of(second), **same}
            twice.append((unpack(first).flat.tobytes(), unpack(second).flat.tobytes()))
        return first

    grid.nodes[10].change = change
    serve(grid, grid.run_config)
    assert len(twice) == 9
    assert all(first == second for first, second in twice)


def test_a_model_can_be_written_while_a_round_is_under_way(grids: Grids, tmp_path: Path) -> None:
    """Which holds the lock of the node's states, and may take long."""
    grid = grids(epochs=1, finetune_epochs=0)
    serve(grid, grid.run_config)
    run = find_run(tmp_path / "state" / "c0")
    expected = deployed_client(run).content
    with Store(run.parent, run.name).locked(0):
        assert deployed_client(run).content == expected


def test_one_message_per_node_and_round(grids: Grids) -> None:
    """Under QuPeD; under FedAvg the server's update changes the model, so an evaluation is one more."""
    for name, expected in (("quped", {"query": 3, "train": 27}), ("fedavg", {"query": 3, "train": 27, "evaluate": 18})):
        grid = grids(name, record=f"{grids(name).run_config['record']}-{name}")
        serve(grid, grid.run_config)
        kinds = [message.metadata.message_type for message in grid.requests]
        assert {kind: kinds.count(kind) for kind in set(kinds)} == expected


def test_messages_are_hardly_larger_than_the_payload() -> None:
    """By two percent at most, with CNN1 and images of 28x28."""
    with torch.random.fork_rng():
        params = dict(build("cnn1", (1, 28, 28), 10).named_parameters())
    tree = {f"w.params/{name}": value.detach() for name, value in params.items()}
    score = {"accuracy": 0.123456789, "own_classes": 0.123456789, "final": True, "loss": 0.123456789}
    content = pack({"client": "phone", "run": "0" * 16, "round": 7, "form": form_of(tree), **score}, flatten(tree))
    sent = sum(len(part.deflate()) for part in get_all_nested_objects(content).values())
    assert sent <= 1.02 * sum(value.numel() * 4 for value in tree.values())


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def algorithm(): return 1\ndef global_model(): pass\n", r"no function client\(node\)"),
        ("import no_such_package\n", "needs a package"),
        ("1 / 0\n", "cannot be imported: ZeroDivisionError"),
        ("def algorithm(a): pass\ndef global_model(): pass\ndef client(node): pass\n", r"must be algorithm\(\)"),
        ("def algorithm(): return 1\ndef global_model(): pass\ndef client(node): pass\n", "algorithm must be a"),
        ("def algorithm(): 1 / 0\ndef global_model(): pass\ndef client(node): pass\n", "failed: ZeroDivisionError"),
    ],
)
def test_mistakes_of_an_app_are_named(
    grids: Grids, tmp_path: Path, caplog: pytest.LogCaptureFixture, code: str, words: str
) -> None:
    name = f"mistaken_{abs(hash(code))}"
    grid = grids()
    (tmp_path / "app" / f"{name}.py").write_text(code)
    with pytest.raises(ValueError, match=words):
        serve(grid, {**grid.run_config, "module": name})
    assert any(line.startswith("error: ") for line in caplog.messages)


def test_problems_of_a_node_are_told_to_the_server(
    grids: Grids, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No folder at all, one that cannot be written, a state of another client."""
    (tmp_path / "file").write_text("")
    grid = grids(join_seconds=0.2, retries=0)
    grid.nodes[11] = FakeNode({"name": "c1"}, registered="c1")
    with pytest.raises(RunError, match=r"c1 have not joined: 'c1': The 'state' in --node-config must be .* Put that"):
        serve(grid, grid.run_config)
    assert any("'state' in --node-config must be the path of a folder" in line for line in caplog.messages)
    grid.nodes[11] = FakeNode({"name": "c1", "state": str(tmp_path / "file")}, registered="c1")
    with pytest.raises(RunError, match=r"'c1': The folder .*file.* cannot be used: Not a directory"):
        serve(grid, grid.run_config)
    grid.nodes[11] = FakeNode({"name": "c1", "state": grid.nodes[10].config["state"]}, registered="c1")
    with pytest.raises(RunError, match="holds the state of client 'c0', not of 'c1': give every node"):
        serve(grid, {**grid.run_config, "record": str(tmp_path / "record2")})


def test_a_network_that_does_not_fit_is_named(grids: Grids, tmp_path: Path) -> None:
    grid = grids(join_seconds=0.5)
    code = (tmp_path / "app" / "app_quped.py").read_text()
    (tmp_path / "app" / "misfit.py").write_text(
        code.replace("return SmallNet()", "return __import__('torch').nn.Linear(77, 3)")
    )
    grid.run_config["module"] = "misfit"
    with pytest.raises(RunError, match=r"not joined: 'c0': The global model, on the data of client 'c0', cannot run"):
        serve(grid, grid.run_config)


def test_a_full_disk_is_named_and_the_run_continues_afterwards(
    grids: Grids, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, save = grids(retries=0), Checkpoints.save
    broken = True

    def full(self: Checkpoints, *arguments: Any) -> None:
        if broken and "c1" in str(self.folder) and arguments[0] == 4:
            raise RunError(f"A checkpoint cannot be written to {self.folder}: No space left on device.")
        save(self, *arguments)

    monkeypatch.setattr(Checkpoints, "save", full)
    with pytest.raises(RunError, match=r"Round 5 .*'c1': .*No space left on device"):
        serve(grid, grid.run_config)
    broken = False
    serve(grid, grid.run_config)
    assert_equals_inline(tmp_path, inline("quped"))


def test_a_server_that_went_back_too_far_is_told_so(grids: Grids, tmp_path: Path) -> None:
    grid = grids(retries=0)
    serve(grid, grid.run_config)
    first = next(m for m in grid.requests if m.metadata.message_type == MessageType.TRAIN)
    node = Node.start(grid.run_config, grid.nodes[10].config)
    with pytest.raises(RunError, match=r"asks for round 1, but .* holds later ones only, from 8 on"):
        node.train(read_request(first.content))


def test_nodes_with_other_versions_are_named(grids: Grids, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    def older(message: Message, answer: Callable[[], RecordDict]) -> RecordDict:
        content = answer()
        if message.metadata.message_type == MessageType.QUERY:
            values_of(content).update({"machine": json.dumps({"torch": "1.0", "cpu": "abacus"})})
        return content

    grid = grids(epochs=1, finetune_epochs=0)
    grid.nodes[10].change = older
    serve(grid, grid.run_config)
    told = "\n".join(caplog.messages)
    assert "The nodes differ in torch: 1.0 at c0; " in told
    assert "The nodes differ in cpu: abacus at c0; " in told
    assert json.loads((tmp_path / "record" / "nodes.json").read_text())["c0"]["machine"]["cpu"] == "abacus"

"""Kills of nodes over real servers: what died is started again, and the result is that of an undisturbed run."""

from helpers.flower_federation import assert_same, finish, make_app, rounds
from helpers.flower_servers import Servers, wait_for

from quped.flower.simulate import simulate_app


def test_kills_of_nodes_change_nothing(servers: Servers) -> None:
    """kill -9 of a ClientApp, and of a SuperNode."""
    app = make_app(servers, "killed", retry_seconds=1.0, epochs=3)
    expected = simulate_app(app, {}, progress=False)
    servers.run(app)
    wait_for(lambda: rounds(servers, "killed") == 1, 600, servers.log("run"))
    servers.crash("phone", "flwr-clientapp")
    servers.crash("tablet")
    servers.restart_node("tablet", after=35.0)
    finish(servers, "killed", 900)
    assert_same(servers, "killed", expected)

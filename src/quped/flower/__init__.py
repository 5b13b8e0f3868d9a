"""Federations whose clients are on machines of their own, on Flower.

An app names these two in its pyproject.toml: `quped.flower:server_app` and `quped.flower:client_app`.
Flower finds them by reading this file, so they are plain assignments.
"""

from quped._extras import extra

with extra("flower"):
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

__all__ = ["client_app", "server_app"]

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run a federation from its first round, or from the last one that was recorded, to its end."""
    from quped.flower.server import serve  # not at a node, where every message starts a process

    serve(grid, context.run_config)


@client_app.query()
@client_app.train()
@client_app.evaluate()
def answer(message: Message, context: Context) -> Message:
    """Answer a message of the server at a node."""
    from quped.flower.node import reply_to

    return Message(reply_to(message, context), reply_to=message)

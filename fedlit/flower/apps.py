"""A recipe as Flower's ClientApp and ServerApp."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedlit.data import FederatedData
from fedlit.data.remote import restrict_to_client, server_data
from fedlit.federation import Federation
from fedlit.flower.grid import KINDS, GridPost, content_of, parts_of
from fedlit.flower.host import Host
from fedlit.flower.hosts import RemoteHosts
from fedlit.flower.recipe import Experiment, experiment, options_of_node, options_of_run
from fedlit.flower.wire import Letter
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import with_followers

STATE = "~/.local/state/fedlit"  # where a host keeps what stays with its client
REPLY_TIMEOUT = 3600.0
JOIN_TIMEOUT = 300.0
QUIET = ["--trainer.logger=false", "--trainer.enable_progress_bar=false", "--trainer.report=false"]


def client_app(config: str | Path) -> ClientApp:
    """A recipe's client; which one, and where its data are, its node says (`--node-config`).

    Args:
        config: The recipe.
    """
    return app_of(lambda context: host_of(Path(config), context.node_config, context.run_config))


def app_of(make_host: Callable[[Context], Host]) -> ClientApp:
    """An app whose every message is a letter to a host, which is made anew for it."""
    app = ClientApp()
    for what, kind in KINDS.items():
        register = {"query": app.query, "train": app.train, "evaluate": app.evaluate}[kind]

        @register()
        def answer(message: Message, context: Context, what: str = what) -> Message:
            answered = make_host(context).answer(what, Letter(**parts_of(message)))
            return Message(content_of({"answer": answered}), reply_to=message)

    return app


def host_of(config: Path, node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> Host:
    """The client that a node is.

    Args:
        config: The recipe.
        node_config: `client` is its number; `state` a folder for what stays with it; `data.dataset` its own data.
        run_config: `options` of all hosts.
    """
    if "client" not in node_config:
        raise ValueError("`--node-config` must give the number of its `client`, such as client=0.")
    client = int(node_config["client"])
    own = options_of_node(node_config)
    one = experiment(config, [*options_of_run(run_config), *own, *QUIET])
    owns_data = "data.dataset" in node_config
    if owns_data:
        restrict_to_client(one.data, client)
    folder = Path(str(node_config.get("state", STATE))).expanduser()
    return Host(*one, client, folder, owns_data)


def server_app(config: str | Path) -> ServerApp:
    """A recipe's server: the rounds, the checks, the records and the checkpoints of `fedlit fit`.

    Args:
        config: The recipe.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(Path(config), grid, context.run_config)

    return app


def serve(config: Path, grid: Grid, run_config: Mapping[str, Any]) -> Experiment:
    """All rounds of a recipe, or those that an earlier run of the same name has left.

    Args:
        config: The recipe.
        grid: By which clients are reached.
        run_config: `folder` in which runs are recorded; `options` of all hosts; `reply-timeout`, `join-timeout`.
    """
    folder = Path(str(run_config.get("folder") or ".")).expanduser()
    own = [f"--trainer.default_root_dir={folder}", "--trainer.enable_progress_bar=true"]
    one = experiment(config, [*options_of_run(run_config), *own])
    check_uploads(one.federation)
    reply_timeout = float(run_config.get("reply-timeout", REPLY_TIMEOUT))
    join_timeout = float(run_config.get("join-timeout", JOIN_TIMEOUT))
    post = GridPost(grid, one.data.num_clients, reply_timeout, join_timeout)
    joined = post.wait_for_all()
    one.federation.hosts = RemoteHosts(post, joined)
    one.federation.fit(one.model, data_of_server(one, joined), ckpt_path="auto")
    return one


def check_uploads(federation: Federation) -> None:
    """Refuse what hosts would send otherwise than a simulation counts it."""
    if federation.options.upload_encoder is not None:
        raise ValueError("`trainer.upload_encoder` is for simulations: hosts send their uploads as they are.")


def data_of_server(one: Experiment, joined: Mapping[int, Mapping[str, Any]]) -> FederatedData:
    """The recipe's data where clients are trials of its partition; blanks, and numbers, where they have their own."""
    owners = [k for k in joined if joined[k]["owns_data"]]
    if not owners:
        return one.data
    if len(owners) < len(joined):
        others = sorted(set(joined) - set(owners))
        raise ValueError(
            f"Clients {owners} have data of their own (`data.dataset` of a node), clients {others} have not."
        )
    check_elsewhere(one.model)
    return server_data(joined)


def check_elsewhere(model: FederatedModule) -> None:
    """Refuse a method that needs samples which neither the server nor any client has alone."""
    for stage in with_followers(model.configure_stages()):
        if stage.public != "no":
            raise ValueError(
                f"{type(model).__name__} cannot run where clients have data of their own: stage {stage.name!r} needs "
                "the public pool, and no host but a trial's has one."
            )

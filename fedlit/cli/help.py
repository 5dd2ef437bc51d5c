"""`--help`: what an option is, its default and what may be given, a few classes by name in place of all.

`--data.partition.help` without a name lists the partitions.
"""

import inspect
import re
from argparse import Action, HelpFormatter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jsonargparse import DefaultHelpFormatter

from fedlit.cli.tables import wrapped
from fedlit.data import Saved
from fedlit.partition import Partition

ENVIRONMENT = (
    "An option may also stand in the environment: FEDLIT_FIT__TRAINER__NUM_ROUNDS=3 is --trainer.num_rounds 3. "
    "What is typed wins over the environment, which wins over a recipe, which wins over defaults."
)
LIST = ", known subclasses: "
NETWORKS = ("fedlit.networks.", "fedlit.heads.Pretrained")  # of the many modules of fedlit, what one would give
OTHERS = ("torch", "torchvision", "torchmetrics", "lightning", "lightning_utilities", "jsonargparse")
USUAL = (
    *("SGD", "Adam", "AdamW", "StepLR", "CosineAnnealingLR"),
    *("TensorBoardLogger", "CSVLogger", "MulticlassF1Score", "TensorDataset"),
)
# What is not for users to give: base classes, and classes of inner packages and modules.
INNER = (
    r"fedlit\.(FederatedModule|\w+\.(Network|FederationCallback)|(engine|fast|records|cli|studies)\..*|\w+\.\w+\.\w+)"
)
MOST = 16  # names of fedlit's own and a user's own that are listed
FEW = 3  # of others, where none of them is usual
DESCRIPTIONS: dict[str, str | Callable[[re.Match[str]], str]] = {
    r"Callable\[\[\], Module\]": "what builds a Module",
    r"Callable\[\[Iterable\], Optimizer\]": "what builds an Optimizer",
    r"Callable\[\[Optimizer\], Union\[LRScheduler, ReduceLROnPlateau\]\]": "what builds an LRScheduler",
    r"Optional\[(.*)\](?=, default)": r"\1 | null",
    r"Union\[([^\[\]]*)\]": lambda kinds: kinds[1].replace(", ", " | "),
}
OPTION = "--data.partition.help"


class ShortHelp(DefaultHelpFormatter):
    """Options without the names of environment variables, and without every class that happens to be imported."""

    def add_usage(self, usage: str | None, actions: Iterable[Action], *args: Any, **kwargs: Any) -> None:
        """The command alone: all that it could list follows below. Of a class, no command."""
        actions = [*actions]
        is_for_name = len(args) > 1  # with an empty prefix, it becomes the name of subcommands
        if is_for_name:
            super().add_usage(usage, actions, *args, **kwargs)
        elif any("--help" in action.option_strings for action in actions):
            command = self._prog.replace("[options] ", "")
            super().add_usage(f"{command} [options]", actions, *args, **kwargs)

    def add_argument(self, action: Action) -> None:
        """The help of one class is named with the option that takes it."""
        if not action.dest.endswith(".help"):
            super().add_argument(action)

    def _format_action_invocation(self, action: Action) -> str:
        return HelpFormatter._format_action_invocation(self, action)

    def _expand_help(self, action: Action) -> str:
        text = super()._expand_help(action)
        for pattern, words in DESCRIPTIONS.items():
            text = re.sub(pattern, words, text)
        start, _, paths = text.partition(LIST)
        if not paths:
            return text
        return f"{start}, {such_as(paths.rstrip(')').split(', '), f'--{action.dest}')})"


def such_as(paths: list[str], option: str) -> str:
    """A few of the classes that an option takes, and how to learn more.

    Example:
        >>> such_as(["torch.optim.ASGD", "torch.optim.SGD", "torch.optim.Adam"], "--model.optimizer")
        'such as SGD, Adam of torch.optim; of one: --model.optimizer.help SGD'
        >>> such_as(["torch.nn.Linear", "fedlit.networks.LeNet5", "my.Net"], "--model.network")
        'such as LeNet5 of fedlit.networks, Net of my; of one: --model.network.help LeNet5'
    """
    if not option.endswith("server_optimizer"):  # those are for what a round comes to
        paths = [path for path in paths if not path.startswith("fedlit.server_optimizers.")]
    shown = _of_interest(paths)
    places: dict[str, list[str]] = {}
    for path in shown:
        place, _, name = path.rpartition(".")
        places.setdefault(place, []).append(name)
    words = ", ".join(f"{', '.join(names)} of {place}" for place, names in places.items())
    first = shown[0].rpartition(".")[2]
    return f"such as {words}; of one: {option}.help {first}"


def _of_interest(paths: list[str]) -> list[str]:
    """Of fedlit and a user's own, else what is usual, else the first."""
    own = [path for path in paths if path.partition(".")[0] not in OTHERS and not re.fullmatch(INNER, path)]
    if any(path.startswith(NETWORKS) for path in own):
        own = [path for path in own if path.startswith(NETWORKS) or not path.startswith("fedlit.")]
    by_name = {path.rpartition(".")[2]: path for path in paths}
    usual = [by_name[name] for name in USUAL if name in by_name]
    ours = [path for path in own if path.startswith("fedlit.")]
    theirs = [path for path in own if not path.startswith("fedlit.")][:MOST]
    return [*ours[:MOST], *theirs] or usual or paths[:FEW]


def print_partitions(args: list[str]) -> None:
    """Print the partitions and exit, if that was asked for; the parser prints the help of one by its name."""
    for place, arg in enumerate(args):
        is_last = place + 1 == len(args) or args[place + 1].startswith("-")
        if arg == OPTION and is_last:
            print(table())
            raise SystemExit(0)


def table() -> str:
    """One row a partition, with the first line that it says of itself."""
    rows = [["partition", "who holds what", "options"]]
    for kind in sorted(set(_kinds(Partition)), key=lambda kind: kind.__name__):
        first = (inspect.getdoc(kind) or "").splitlines()[0]
        rows.append([kind.__name__, first, ", ".join(inspect.signature(kind).parameters)])
    return f"{wrapped(rows)}\n\nOf one: {OPTION} {Saved.__name__}"


def _kinds(kind: type) -> Iterator[type]:
    """Those that can be given, of fedlit and of a user's modules that are imported."""
    subclasses: list[type] = kind.__subclasses__()
    for inner in subclasses:
        if not inspect.isabstract(inner):
            yield inner
        yield from _kinds(inner)

"""What `--help` says: what an option is, its default and what may be given, a few classes by name in place of all."""

import re
from argparse import Action, HelpFormatter
from collections.abc import Callable, Iterable
from typing import Any

from jsonargparse import DefaultHelpFormatter

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
# What is not for users to give: bases, and what lies in rooms or files of its own.
INNER = (
    r"fedlit\.(FederatedModule|\w+\.(Network|FederationCallback)|(engine|fast|records|cli|studies)\..*|\w+\.\w+\.\w+)"
)
MOST = 16  # names of fedlit's own and a user's own that are told
FEW = 3  # of others, where none of them is usual
IN_WORDS: dict[str, str | Callable[[re.Match[str]], str]] = {
    r"Callable\[\[\], Module\]": "what builds a Module",
    r"Callable\[\[Iterable\], Optimizer\]": "what builds an Optimizer",
    r"Callable\[\[Optimizer\], Union\[LRScheduler, ReduceLROnPlateau\]\]": "what builds an LRScheduler",
    r"Optional\[(.*)\](?=, default)": r"\1 | null",
    r"Union\[([^\[\]]*)\]": lambda kinds: kinds[1].replace(", ", " | "),
}


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
        """What helps with one class is told with the option that takes it."""
        if not action.dest.endswith(".help"):
            super().add_argument(action)

    def _format_action_invocation(self, action: Action) -> str:
        return HelpFormatter._format_action_invocation(self, action)

    def _expand_help(self, action: Action) -> str:
        told = super()._expand_help(action)
        for pattern, words in IN_WORDS.items():
            told = re.sub(pattern, words, told)
        start, _, paths = told.partition(LIST)
        if not paths:
            return told
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
    told = _of_interest(paths)
    places: dict[str, list[str]] = {}
    for path in told:
        place, _, name = path.rpartition(".")
        places.setdefault(place, []).append(name)
    words = ", ".join(f"{', '.join(names)} of {place}" for place, names in places.items())
    first = told[0].rpartition(".")[2]
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

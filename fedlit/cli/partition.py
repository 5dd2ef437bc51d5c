"""`fedlit partition`: the partition of a recipe, without training."""

import re
from pathlib import Path

from fedlit.cli.refusal import OneLineParser, refuse

EXAMPLES = """\
Every option of the data may be given as in `fedlit fit`; see fedlit fit --data.help FederatedData.

examples:
  fedlit partition --config fml_fashion.yaml
  fedlit partition --config fml_fashion.yaml --data.partition Shards --data.partition.per_client 2
  fedlit partition --data.num_clients 20 --picture partition.png
"""
FORMATS = (".png", ".pdf", ".svg")


def main(args: list[str]) -> None:
    """Show the partition: a table of clients and classes, and a picture if asked for."""
    parser = OneLineParser("fedlit partition", str(main.__doc__), epilog=EXAMPLES)
    parser.add_argument("-c", "--config", metavar="RECIPE", action="append", default=[], help="As in `fedlit fit`.")
    parser.add_argument("--picture", metavar="FILE", help=f"Draw it, too, as {', '.join(FORMATS)}.")
    given, rest = parser.parse_known_args(args)
    for arg in rest:
        if re.match(r"--?[a-z]", arg) and not arg.startswith("--data"):
            refuse(f"`{arg.partition('=')[0]}` does not affect the partition; give options of `--data`.")
    picture = _picture(given.picture)
    recipes = [word for recipe in given.config for word in ("--config", recipe)]
    from fedlit.cli.partition_table import print_table  # takes seconds

    print_table([*recipes, *rest], picture)


def _picture(name: str | None) -> Path | None:
    """Where to draw, checked before anything takes time."""
    if name is None:
        return None
    path = Path(name)
    if path.suffix not in FORMATS:
        refuse(f"`--picture` must end in {', '.join(FORMATS)}, got {name}.")
    if not path.parent.is_dir():
        refuse(f"`--picture` {name}: there is no folder {path.parent}.")
    return path

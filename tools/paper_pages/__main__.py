"""`python -m tools.paper_pages` builds the pages; with `--take STUDY NAME` it first takes a study's runs in.

STUDY is the folder that `fedlit compare` wrote; NAME is what docs/papers/src calls its runs.
"""

from argparse import ArgumentParser
from pathlib import Path

from fedlit.records.files import write_whole
from tools.paper_pages.book import built, figures
from tools.paper_pages.take import take

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Build everything."""
    parser = ArgumentParser("python -m tools.paper_pages", description=__doc__)
    parser.add_argument(
        "--take", nargs=2, metavar=("STUDY", "NAME"), help="A study's folder, and what its runs are called."
    )
    given = parser.parse_args()
    if given.take is not None:
        study, name = given.take
        take(Path(study), ROOT / "docs" / "papers" / "runs" / name)
    for path, text in {**built(ROOT), **figures(ROOT)}.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(ROOT / path, text)
        print(path)


if __name__ == "__main__":
    main()

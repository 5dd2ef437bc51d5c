"""`fedlit partition` shows what a fit would deal out, and trains nothing."""

import csv
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from toy_recipe import write_recipe

from fedlit import FederatedModule
from fedlit.cli import app
from fedlit.cli.partition import main


@pytest.fixture(autouse=True)
def _recipe_here(_own_folder):
    write_recipe()


def shown(said: str) -> dict[str, list[int]]:
    """The numbers of the table, by client."""
    found = {}
    for line in said.partition("\n\n")[0].splitlines()[1:]:
        first, *cells = line.split()
        found[first] = [0 if cell == "." else int(cell) for cell in cells if cell != "unseen"]
    return found


def test_the_table_is_what_a_fit_deals_out(capsys):
    options = ["--data.opt_out=[1]", "--data.partition=Dirichlet", "--data.partition.alpha=0.5"]
    main(["--config", "run.yaml", *options])
    table = shown(capsys.readouterr().out)
    app.main(["fit", "--config", "run.yaml", *options, "--trainer.num_rounds=1"])
    with open("lightning_logs/version_0/partition.csv") as file:
        dealt = list(csv.DictReader(file))
    for k in ("0", "1", "2"):
        own = [row for row in dealt if row["client"] == k]
        train = [row for row in own if row["split"] == "train"]
        by_class = Counter(row["label"] for row in train)
        opted_in = sum(row["shared"] == "1" for row in train)
        expected = [*(by_class[str(c)] for c in range(3)), len(train), opted_in, len(own) - len(train)]
        assert table[k] == expected
    assert table["all"] == np.sum([table[k] for k in ("0", "1", "2")], axis=0).tolist()
    assert table["1"][-2] == 0


def test_nothing_is_trained_or_written_and_no_method_is_built(capsys, monkeypatch):
    monkeypatch.setattr(FederatedModule, "__init__", lambda *args, **kwargs: pytest.fail("a method was built"))
    before = sorted(Path().rglob("*"))
    main(["-c", "run.yaml"])
    assert sorted(Path().rglob("*")) == before
    assert "3 clients hold 18 to 18 training samples (median 18)" in capsys.readouterr().out


def test_a_recipe_is_not_needed(capsys):
    main(["--data.dataset=toy.npz", "--data.num_clients", "4", "--data.validation=test"])
    said = capsys.readouterr().out
    assert list(shown(said)) == ["0", "1", "2", "3", "all"]
    assert "their validation samples are of the test set; the pooled test set has 30." in said


def test_a_picture_is_drawn_where_it_is_asked_for(capsys):
    main(["-c", "run.yaml", "--picture", "who.png"])
    assert Path("who.png").read_bytes().startswith(b"\x89PNG")
    assert "Look at who.png." in capsys.readouterr().out


def write_prices() -> None:
    """A table of values, of three users; nothing in it is a class."""
    lines = [f"{i},{i * 0.5},u{i % 3}\n" for i in range(60)]
    Path("prices.csv").write_text("size,price,user\n" + "".join(lines))


PRICES = ["--data.dataset=prices.csv", "--data.target=price", "--data.test_size=0.2"]


@pytest.mark.parametrize(
    ("options", "summary"),
    [
        (["--data.client=user", "--data.num_clients=3"], "3 clients hold 12 to 17 training samples"),
        (["--data.features=[size]", "--data.partition=IID", "--data.num_clients=4"], "4 clients hold 11 to 11"),
    ],
)
def test_data_without_classes_are_reported_and_drawn_by_their_numbers_alone(options, summary, capsys):
    write_prices()
    main([*PRICES, *options, "--picture", "who.png"])
    said = capsys.readouterr().out
    assert said.splitlines()[0].split() == ["client", "samples", "opted", "in", "validation"]
    assert summary in said
    assert Path("who.png").read_bytes().startswith(b"\x89PNG")


def test_clients_of_a_natural_partition_are_reported_by_their_names(capsys):
    write_prices()
    main([*PRICES, "--data.client=user", "--data.num_clients=3"])
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:4]] == [
        ["0", "u0"],
        ["1", "u1"],
        ["2", "u2"],
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            "--model.optimizer.lr=3",
            r"^`--model.optimizer.lr` does not affect the partition; give options of `--data`",
        ),
        ("--seed_everything 3", r"^`--seed_everything` does not affect the partition"),
        ("--data.num_client=3", r"^`data.num_client` is not an option. Did you mean `data.num_clients`\?$"),
        ("--data.num_clients=61", r"^`data.num_clients`: 61 clients .* need 61 samples, there are 60"),
        ("--picture who.gif", r"^`--picture` must end in .png, .pdf, .svg, got who.gif.$"),
        ("--picture nowhere/who.png", r"^`--picture` nowhere/who.png: there is no folder nowhere.$"),
        ("--config nowhere.yaml", r"^`--config nowhere.yaml`: there is no such file here"),
    ],
)
def test_bad_input_is_reported_in_one_line(args, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--config", "run.yaml", *args.split()])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert re.search(message, printed.err.removeprefix("fedlit: error: ").rstrip()), printed.err

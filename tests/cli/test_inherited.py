"""A notice names arguments that an option inherits from a class that it no longer has."""

import pytest
import yaml

from fedlit.cli.command import main

RECIPE = {
    "class_path": "fedlit.data.FederatedData",
    "init_args": {
        "num_clients": 4,
        "partition": {"class_path": "fedlit.partition.Majority", "init_args": {"p": 0.9, "samples_per_client": 50}},
    },
}
SHARDS = ["--data.partition", "Shards"]
LINE = (
    "fedlit: note: `data.partition` is Shards and inherits `samples_per_client`: 50, which was given to Majority; "
    "`--data.partition.samples_per_client` changes it.\n"
)


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    """What `fedlit partition` prints on both streams."""
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"data": RECIPE}))
    second = {"data": {"init_args": {"partition": {"class_path": "Shards"}}}}
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(second))

    def call(*args):
        monkeypatch.setattr("sys.argv", ["fedlit", "partition", *args])
        main()
        return capsys.readouterr()

    return call


@pytest.mark.parametrize(
    "typed",
    [
        ["--config", "a.yaml", *SHARDS],
        ["--config", "a.yaml", "--data.init_args.partition", "Shards"],
        ["--config", "a.yaml", "--data.partition", "{class_path: Shards, init_args: {per_client: 2}}"],
        ["-c", "a.yaml", "--config=b.yaml"],
    ],
)
def test_an_argument_of_another_class_is_reported_however_the_new_one_was_typed(typed, said):
    assert said(*typed).err == LINE


@pytest.mark.parametrize(
    "typed",
    [
        ["--config", "a.yaml"],
        ["--config", "a.yaml", *SHARDS, "--data.partition.samples_per_client", "50"],
        ["--config", "a.yaml", *SHARDS, "--data.partition.samples_per_client", "null"],
        ["--config", "a.yaml", "--data.partition", "Dirichlet"],  # which has no such argument
        ["--config", "a.yaml", *SHARDS, "--data.partition", "Majority"],
    ],
)
def test_what_was_given_to_the_class_itself_or_is_not_there_any_more_is_not_reported(typed, said):
    assert said(*typed).err == ""


def test_null_takes_such_an_argument_away(said):
    kept = said("-c", "a.yaml", *SHARDS).out
    assert said("-c", "a.yaml", *SHARDS, "--data.partition.samples_per_client", "null").out != kept


def test_what_is_typed_wins_over_a_recipe_that_stands_behind_it(said):
    behind = said(*SHARDS, "--data.partition.samples_per_client=50", "--config", "a.yaml", "--data.num_clients=3").out
    assert behind == said("-c", "a.yaml", *SHARDS, "--data.num_clients=3").out

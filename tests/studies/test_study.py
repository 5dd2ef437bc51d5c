"""A study says what it asks; whatever is wrong with it is one line that names it."""

import copy

import pytest

from fedlit.studies.study import build_study, chosen, read_study

CONTENT = {
    "recipe": "fedavg_fashion.yaml",
    "rows": {"FedAvg": {}, "FML": {"model": {"class_path": "FML"}}},
    "columns": {"IID": {"data.partition": "IID"}, "shards": {"data": {"init_args": {"num_clients": 5}}}},
    "seeds": 3,
    "measure": {"metric": "acc/global_on_pooled"},
    "paper": {"FedAvg": [98.4, 90.5], "FML": {"IID": 98.5}},
}


def changed(**changes):
    content = copy.deepcopy(CONTENT)
    for key, value in changes.items():
        content[key] = value
    return content


def test_a_cell_has_the_options_of_its_column_then_of_its_row():
    cell = build_study(changed(options={"trainer.num_rounds": 3})).cell("FML", "IID")
    expected = ({"trainer.num_rounds": 3}, {"data.partition": "IID"}, {"model": {"class_path": "FML"}})
    assert cell.options == expected
    assert cell.recipe == "fedavg_fashion.yaml"


def test_every_cell_has_the_papers_number_or_none():
    study = build_study(CONTENT)
    assert [cell.paper for cell in study.cells] == [98.4, 90.5, 98.5, None]


def test_a_row_may_measure_otherwise_and_a_column_has_the_last_word():
    content = changed(rows={"a": {"measure": {"at": "best"}}, "b": None}, paper={})
    content["columns"]["IID"]["measure"] = {"metric": "loss/global_on_own"}
    study = build_study(content)
    assert study.cell("a", "IID").measure.at == "best"
    assert study.cell("b", "IID").measure.at == "last"
    assert study.cell("b", "IID").measure.metric == "loss/global_on_own"
    assert study.cell("b", "shards").measure.metric == "acc/global_on_pooled"


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ([], ["FedAvg, IID", "FedAvg, shards", "FML, IID", "FML, shards"]),
        (["FML"], ["FML, IID", "FML, shards"]),
        (["sh*"], ["FedAvg, shards", "FML, shards"]),
        (["F*", "IID"], ["FedAvg, IID", "FML, IID"]),
    ],
)
def test_only_takes_a_row_and_a_column_or_one_for_either(patterns, names):
    assert [str(cell) for cell in chosen(build_study(CONTENT), patterns).cells] == names


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": {}}, "`rows` must name at least one row"),
        ({"rows": {"FedAvg": 3}}, "`rows.FedAvg` must hold options by name, got 3"),
        ({"recipe": None}, "row 'FedAvg', column 'IID' has no recipe"),
        (
            {"rows": {"FedAvg": {"recipe": 3}}, "paper": {}},
            "`rows.FedAvg`: `recipe` must be the name of a recipe, got 3",
        ),
        ({"baseline": "FedProx"}, r"`baseline` must be one of the rows \(FedAvg, FML\), got 'FedProx'"),
        ({"paper": {"FedAvg": [98.4]}}, "`paper.FedAvg` must have 2 numbers, one for each column, got 1"),
        ({"paper": {"FedProx": [1, 2]}}, "`paper` names 'FedProx', but there are FedAvg, FML"),
        ({"paper": {"FML": {"non-IID": 90.0}}}, "`paper.FML` names 'non-IID', but there are IID, shards"),
        (
            {"paper": {"FML": ["98 %", None]}},
            "`paper.FML` must hold numbers, or null where the paper has none, got '98 %'",
        ),
        ({"without": {"FML": ["IID", "shards"]}}, "`without.FML` leaves the row without a cell"),
        ({"without": {"FML": ["niid"]}}, "`without.FML` names 'niid', but there are IID, shards"),
        ({"seeds": 0}, "`seeds` must be a number of seeds from 1 to 1000, or a list of them, got 0"),
        ({"seeds": [1, 1]}, "`seeds` names a seed twice"),
        ({"seeds": [-1]}, "`seeds`: a seed must be 0 to 4294967295, got -1"),
        ({"seeds": {"training": [1, 2]}}, "`seeds` must be a number, a list, or `training` and `partition`"),
        ({"seeds": {"training": [1, 2], "partition": [1]}}, "lists of equally many seeds"),
        ({"seeds": {"training": 1, "partition": 2}}, "or a list and a number, which is pinned; got {'tra"),
        ({"measure": {"metric": "accuracy"}}, "`measure.metric` must be metric/model_on_data, such as"),
        ({"measure": {"at": "end"}}, "`measure.at` must be one of last, best, .*, got 'end'"),
        ({"measure": {"at": "rounds_to_target"}}, "`measure.at: rounds_to_target` needs a `target`"),
        ({"measure": {"target": "high"}}, "`measure.target` must be a number, got 'high'"),
        ({"measure": {"metrik": "acc/a_on_b"}}, "`measure`: `metrik` is not known; did you mean `metric`"),
        ({"measure": {"client": -1}}, "`measure.client` must be the id of a client, got -1"),
        ({"measure": {"client": 1, "over_clients": "worst"}}, "exclude each other"),
        ({"measure": {"over": "steps"}}, "`measure.over` must be one of rounds, epochs, newcomers, got 'steps'"),
        (
            {"measure": {"over": "newcomers", "metric": "acc/personal_on_unseen"}},
            "FedAvg, IID: `measure.over: newcomers` needs `adapt`, the epochs that newcomers train for, such as 10",
        ),
        (
            {"adapt": 2, "measure": {"over": "newcomers"}},
            "`measure.metric` of newcomers must be metric/model_on_unseen, .* got 'acc/client_on_own'",
        ),
        (
            {"adapt": 2, "measure": {"over": "newcomers", "metric": "acc/global_on_unseen"}},
            "the model one of personal, finetuned and scratch, such as acc/personal_on_unseen, got 'acc/global",
        ),
        (
            {"measure": {"over": "epochs", "target": 0.5}},
            "`measure.over: epochs` has no rounds, bytes or seconds to a target; set `at: last`, and no `target`",
        ),
        ({"sweep": {"model.mu": 0.1}}, "`sweep.model.mu` must be a list of at least two values, got 0.1"),
        ({"tune_seeds": [2]}, "`tune_seeds` must not be among `seeds`, those of the table, got 2"),
        ({"tune_seeds": 0}, "`tune_seeds` must be a number of seeds from 1 to 1000, or a list of them, got 0"),
        (
            {"tune_measure": {"metric": "acc/global_on_pooled"}},
            "`tune_measure.metric` must not be of the test set, got 'acc/global_on_pooled'",
        ),
        ({"tune_measure": {"at": "end"}}, "`tune_measure`: `measure.at` must be one of last, best, .*, got 'end'"),
        ({"adapt": 0}, "`adapt` must be a number of epochs, at least 1, got 0"),
        ({"run_timeout": 0}, "`run_timeout` must be a number of seconds above 0, or null, got 0"),
        ({"run_timeout": "1 h"}, "`run_timeout` must be a number of seconds above 0, or null, got '1 h'"),
        ({"adapt": True}, "`adapt` must be a number of epochs, at least 1, got True"),
        (
            {"adapt": 2, "measure": {"over": "newcomers", "at": "rounds_to_target", "target": 0.5}},
            "`measure.over: newcomers` has no rounds, bytes or seconds to a target",
        ),
        (
            {"measure": {"over": "epochs", "at": "rounds_to_target", "target": 0.5}},
            "`measure.over: epochs` has no rounds",
        ),
        ({"measure": {"percent": "yes"}}, "`measure.percent` must be true or false, got 'yes'"),
    ],
)
def test_what_is_wrong_is_named(changes, words):
    with pytest.raises(ValueError, match=words):
        build_study(changed(**changes))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rows: {a: {}}\nrows: {b: {}}\n", "study.yaml must be YAML, but in line 2: 'rows' is given twice"),
        ("rows: {a: {}\n", "study.yaml must be YAML, but in line 2"),
        ("- a\n", "must hold a study by name, such as `rows:`, got a list"),
        ("", "got nothing"),
        ("row: {a: {}}\n", "study.yaml: `row` is not known; did you mean `rows`?"),
        ("rows: {a: {}}\n", "study.yaml: row 'a' has no recipe"),
    ],
)
def test_a_bad_file_is_named_with_its_line(text, words, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words.replace("?", r"\?")):
        read_study(path)


def test_a_recipe_beside_the_study_is_meant_first(tmp_path):
    (tmp_path / "fedavg_fashion.yaml").write_text("seed_everything: 1\n")
    (tmp_path / "study.yaml").write_text("recipe: fedavg_fashion.yaml\nrows: {a: {}}\n")
    cell = read_study(tmp_path / "study.yaml").cell("a", "")
    assert cell.recipe == str(tmp_path / "fedavg_fashion.yaml")

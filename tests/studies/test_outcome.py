"""Numbers of a study come from the records of its runs, as one would work them out by hand."""

from dataclasses import replace

import pytest
from runs_by_hand import write_adaptation, write_run

from fedlit.studies.measure import Measure
from fedlit.studies.outcome import Outcome, number_of
from fedlit.studies.results import Results, estimate, paired
from fedlit.studies.study import SeedPair, build_study

CURVE = [[0.2, 0.4], [0.6, 0.8], [0.5, 0.7]]


@pytest.fixture
def outcome(tmp_path):
    return Outcome(write_run(tmp_path / "run", CURVE))


@pytest.mark.parametrize(
    ("measure", "number"),
    [
        (Measure(), 0.6),
        (Measure(at="best"), 0.7),
        (Measure(at="median_of_last_ten"), 0.6),
        (Measure(over_clients="worst"), 0.5),
        (Measure(over_clients="worst_tenth"), 0.5),
        (Measure(over_clients="spread"), 0.1),
        (Measure(client=1), 0.7),
        (Measure(metric="acc/global_on_pooled"), 0.5),
        (Measure(at="rounds_to_target", target=0.65), 2),
        (Measure(at="bytes_to_target", target=0.65), 400),
        (Measure(at="seconds_to_target", target=0.65), 4.0),
        (Measure(at="rounds_to_target", target=0.9), None),
        (Measure(at="rounds_to_target", target=0.55, client=0), 2),
    ],
)
def test_a_measure_is_the_number_that_one_reads_off(outcome, measure, number):
    assert number_of(outcome, measure) == (None if number is None else pytest.approx(number))


def test_newcomers_are_measured_by_epoch(outcome):
    measure = Measure.read({"metric": "acc/personal_on_unseen", "over": "newcomers"})
    with pytest.raises(ValueError, match=r"has no adapt\.csv; call `fedlit adapt`"):
        number_of(outcome, measure)
    write_adaptation(outcome.folder, [0.1, 0.4, 0.3])
    assert number_of(outcome, measure) == 0.3
    assert number_of(outcome, replace(measure, at="best")) == 0.4
    assert number_of(outcome, replace(measure, metric="acc/scratch_on_unseen")) == 0.15
    assert outcome.curve(measure).to_dict() == {0: 0.1, 1: 0.4, 2: 0.3}
    needed = Measure.read({"metric": "epochs_to_converge/personal_on_unseen", "over": "newcomers"})
    assert number_of(outcome, needed) == 2
    assert not needed.for_run(outcome.directions).is_better_high
    assert measure.for_run(outcome.directions).is_better_high
    with pytest.raises(ValueError, match="acc/local_on_unseen was never measured over newcomers; there are acc/pers"):
        number_of(outcome, replace(measure, metric="acc/local_on_unseen"))
    with pytest.raises(ValueError, match="acc/personal_on_unseen of client 7 was never measured"):
        number_of(outcome, replace(measure, client=7))
    with pytest.raises(ValueError, match="unseen in stage 'x' was never measured over rounds"):
        number_of(outcome, replace(measure, over="rounds", stage="x"))


def test_only_numbers_of_one_kind_are_compared(tmp_path):
    rows = {"a": {}, "b": {}, "loss": {"measure": {"metric": "loss/client_on_own"}}}
    study = build_study({"recipe": "r", "rows": rows, "seeds": 2})
    outcomes = {}
    for cell, levels in zip(study.cells, ([0.2, 0.21], [0.5, 0.51], [0.9, 0.91]), strict=True):
        for seeds, level in zip(study.seeds, levels, strict=True):
            folder = write_run(tmp_path / cell.row / seeds.name, [[level]])
            if cell.row == "loss":
                text = (folder / "metrics.csv").read_text()
                (folder / "metrics.csv").write_text(text.replace(",acc,", ",loss,"))
            outcomes[cell, seeds] = Outcome(folder)
    results = Results(study, outcomes, {})
    _, b, loss = study.cells
    assert results.against_baseline(b).mean == pytest.approx(0.3)
    assert results.against_baseline(loss) is None
    assert [results.is_best(cell) for cell in study.cells] == [False, True, False]


def test_without_a_personal_model_clients_use_the_global_one(tmp_path):
    outcome = Outcome(write_run(tmp_path, CURVE, model="global"))
    assert number_of(outcome, Measure()) == pytest.approx(0.6)


def test_what_was_never_measured_is_said_with_what_was(outcome):
    with pytest.raises(
        ValueError, match="acc/local_on_own was never measured over rounds; there are acc/global_on_pooled"
    ):
        number_of(outcome, Measure(metric="acc/local_on_own"))


def test_an_interval_is_the_one_of_the_t_distribution():
    """Differences 2, 4, 3: mean 3, sd 1, t_{0.975, 2} = 4.3027: 3 ± 2.4841; t = 5.196, p = 0.0351."""
    found = paired({1: 5.0, 2: 8.0, 3: 4.0}, {1: 3.0, 2: 4.0, 3: 1.0})
    assert found.mean == pytest.approx(3.0)
    assert found.sd == pytest.approx(1.0)
    assert found.low == pytest.approx(3 - 2.4841, abs=1e-4)
    assert found.high == pytest.approx(3 + 2.4841, abs=1e-4)
    assert found.p == pytest.approx(0.0351, abs=1e-4)
    assert found.excludes_zero


def test_only_pairs_that_both_have_count():
    assert paired({1: 2.0, 2: 3.0}, {2: 1.0, 3: 7.0}).n == 1


def test_one_value_has_no_interval_and_equal_pairs_have_no_width():
    one = estimate([0.5])
    assert one.mean == 0.5
    assert not one.excludes_zero
    same = estimate([0.25, 0.25])
    assert (same.low, same.high, same.p) == (0.25, 0.25, 0.0)
    assert estimate([0.0, 0.0]).p == 1.0


def study_of(tmp_path, rows, **content):
    """A study whose runs are written by hand: rows by name, each a curve for every seed."""
    seeds = len(next(iter(rows.values())))
    study = build_study({"recipe": "r.yaml", "rows": dict.fromkeys(rows), "seeds": seeds, **content})
    outcomes = {}
    for cell in study.cells:
        for seed, curve in enumerate(rows[cell.row], start=1):
            method = "fedlit.LocalOnly" if cell.row == "alone" else "fedlit.FedAvg"
            folder = write_run(tmp_path / cell.row / str(seed), curve, method=method, seed=seed)
            outcomes[cell, SeedPair(seed, seed)] = Outcome(folder)
    return Results(study, outcomes, {})


def test_the_best_is_best_only_where_every_interval_excludes_zero(tmp_path):
    level = {"a": [[[0.80, 0.82]], [[0.70, 0.72]], [[0.60, 0.62]]]}
    ahead = {**level, "b": [[[0.85, 0.88]], [[0.76, 0.77]], [[0.65, 0.68]]]}  # 5.5, 5.5, 5.5 points ahead
    results = study_of(tmp_path / "ahead", ahead)
    assert results.summary["is_best"].tolist() == [False, True]
    mixed = {**level, "b": [[[0.85, 0.88]], [[0.60, 0.62]], [[0.65, 0.68]]]}
    assert study_of(tmp_path / "mixed", mixed).summary["is_best"].tolist() == [False, False]


def test_of_rounds_to_a_target_the_fewest_are_best(tmp_path):
    slow = [[[0.1, 0.1], [0.2, 0.2], [0.9, 0.9]]] * 3
    swift = [[[0.1, 0.1], [0.9, 0.9], [0.9, 0.9]]] * 3
    measure = {"at": "rounds_to_target", "target": 0.8}
    summary = study_of(tmp_path, {"slow": slow, "swift": swift}, measure=measure).summary
    assert summary["mean"].tolist() == [3, 2]
    assert summary["is_best"].tolist() == [False, True]


def test_a_run_that_misses_the_target_is_not_counted_as_fast(tmp_path):
    curves = [[[0.1, 0.1], [0.9, 0.9]], [[0.1, 0.1], [0.2, 0.2]]]
    measure = {"at": "rounds_to_target", "target": 0.8}
    summary = study_of(tmp_path, {"a": curves}, measure=measure).summary
    assert summary["done"].tolist() == [2]
    assert summary["n"].tolist() == [1]


def test_who_does_better_than_alone_is_counted_client_by_client(tmp_path):
    rows = {"FedAvg": [[[0.9, 0.5]]], "alone": [[[0.8, 0.6]]]}
    runs = study_of(tmp_path, rows).runs
    assert runs["better_than_alone"].tolist()[0] == 0.5


def test_a_line_for_every_run_and_the_missing_one_is_said(tmp_path):
    results = study_of(tmp_path, {"a": [CURVE, CURVE]})
    only_first = {key: value for key, value in results.outcomes.items() if key[1].training == 1}
    runs = Results(results.study, only_first, {}).runs
    assert runs["status"].tolist() == ["done", "missing"]
    assert runs["bytes"].tolist()[0] == 600
    assert runs["seconds"].tolist()[0] == 6.0

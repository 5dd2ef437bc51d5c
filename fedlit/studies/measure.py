"""What a study measures: one number of each run, from its records.

A metric is named metric/model_on_data. The model `client` is the one that a client itself would use: its personal
model, or the global one if the method has no other.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from fedlit.studies.options import check_keys, is_number, is_whole, require

At = Literal["last", "best", "median_of_last_ten", "rounds_to_target", "bytes_to_target", "seconds_to_target"]
OverClients = Literal["mean", "worst", "worst_tenth", "spread"]
TO_TARGET: tuple[At, ...] = ("rounds_to_target", "bytes_to_target", "seconds_to_target")
Over = Literal["rounds", "epochs", "newcomers"]
Direction = Literal["max", "min"]
KEYS = ("metric", "at", "target", "over_clients", "client", "stage", "over", "percent", "direction")
OF_NEWCOMERS = re.compile(r"/(client|personal|finetuned|scratch)_on_unseen$")
KEY = re.compile(r"(?P<metric>.+)/(?P<model>\w+)_on_(?P<data>\w+)")
METRIC_NAMES = {"acc": "Accuracy", "f1": "F1", "r2": "R²", "iou": "IoU"}  # others are spelt as they are called
DATA_NAMES = {"own": "own data", "pooled": "pooled data", "unseen": "data of unseen clients"}
OVER_NAMES = {
    "mean": "",
    "worst": ", worst client",
    "worst_tenth": ", worst tenth of clients",
    "spread": ", standard deviation over clients",
}


@dataclass(frozen=True)
class Measure:
    """One number of a run.

    Attributes:
        metric: Such as acc/personal_on_own; the model `client` is what a client would use itself.
        at: The `last` value, the `best`, the `median_of_last_ten`, or rounds, bytes or seconds to the target.
        target: What the metric must reach; with a loss, what it must fall to.
        over_clients: What becomes of the clients' values: their mean, the worst, the mean of the worst tenth, or their
            standard deviation (`spread`).
        client: The value of one client only.
        stage: Of this stage only.
        over: Values by `rounds`; by the local `epochs` of a stage (see `trainer.eval_every_n_epochs`); or by those of
            `newcomers`, clients that join after the fit (see `adapt` of a study).
        percent: Show a fraction as per cent, as papers do; by default, accuracies.
        direction: Whether a larger value is a better one, `max`, or a smaller one, `min`; as the runs recorded it by
            default.
        is_default: Whether no metric was given: then the first metric of the run's task is measured.
    """

    metric: str = "acc/client_on_own"
    at: At = "last"
    target: float | None = None
    over_clients: OverClients = "mean"
    client: int | None = None
    stage: str | None = None
    over: Over = "rounds"
    percent: bool = True
    direction: Direction | None = None
    is_default: bool = False

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "Measure":
        """From a study's file, checked."""
        check_keys(given, KEYS, "`measure`")
        metric = given.get("metric", cls.metric)
        is_metric = isinstance(metric, str) and KEY.fullmatch(metric) is not None
        require(is_metric, "`measure.metric` must be metric/model_on_data, such as acc/global_on_own", metric)
        choices = {"at": At, "over_clients": OverClients, "over": Over, "direction": Direction}
        for name, allowed in choices.items():
            value = given.get(name, getattr(cls, name))
            expected = f"`measure.{name}` must be one of {', '.join(get_args(allowed))}"
            require(value in (*get_args(allowed), getattr(cls, name)), expected, value)
        _check_target(given, metric)
        _check_kinds(given)
        percent = given.get("percent", metric.startswith("acc/"))
        return cls(**{**given, "percent": percent, "is_default": "metric" not in given})

    def for_run(self, directions: Mapping[str, Direction]) -> "Measure":
        """The measure completed by what a run recorded: its first metric, and whether each metric is to rise.

        Example:
            >>> Measure(is_default=True).for_run({"perplexity": "min", "loss": "min"}).metric
            'perplexity/client_on_own'
        """
        metric, _, where = self.metric.rpartition("/")
        measure = self
        if self.is_default and directions and metric not in directions:
            metric = next(iter(directions))
            measure = replace(measure, metric=f"{metric}/{where}", percent=False)
        if measure.direction is None:
            measure = replace(measure, direction=directions.get(metric))
        return measure

    def is_like(self, other: "Measure") -> bool:
        """Whether numbers of both are of one kind and may be compared.

        Example:
            >>> Measure("acc/global_on_own").is_like(Measure("acc/client_on_own", at="best"))
            True
            >>> Measure("loss/global_on_own").is_like(Measure("acc/global_on_own"))
            False
        """
        if self.metric.rpartition("/")[0] != other.metric.rpartition("/")[0]:
            return False
        return self.at == other.at or not (self.is_to_target or other.is_to_target)

    @property
    def step(self) -> str:
        """What values are counted by."""
        return "round" if self.is_by_round else "epoch"

    @property
    def is_by_round(self) -> bool:
        """Whether values are those of rounds, in which something is sent, and not of local epochs."""
        return self.over == "rounds"

    @property
    def is_to_target(self) -> bool:
        """Whether it counts what the target took."""
        return self.at in TO_TARGET

    @property
    def rises(self) -> bool:
        """Whether a larger value of the metric is a better one."""
        if self.direction is not None:
            return self.direction == "max"
        return "loss" not in self.metric

    @property
    def is_better_high(self) -> bool:
        """Whether a larger number in the table is a better one."""
        if self.is_to_target or self.over_clients == "spread":
            return False
        return self.rises

    @property
    def factor(self) -> float:
        """What values of the metric are multiplied by where they are shown."""
        return 100.0 if self.percent else 1.0

    @property
    def label(self) -> str:
        """The metric with its unit, as on an axis.

        Example:
            >>> Measure().label, Measure("acc/global_on_pooled", over_clients="worst").label
            ('Accuracy on own data (%)', 'Accuracy of the global model on pooled data, worst client (%)')
        """
        return self._name + (" (%)" if self.percent else "")

    @property
    def _name(self) -> str:
        words = KEY.fullmatch(self.metric)
        assert words is not None  # a Measure is checked
        metric = METRIC_NAMES.get(words["metric"], words["metric"].replace("_", " "))
        of_model = "" if words["model"] == "client" else f" of the {words['model']} model"
        data = DATA_NAMES.get(words["data"], f"{words['data']} data")
        if self.client is not None:
            return f"{metric[0].upper()}{metric[1:]}{of_model} on {data}, client {self.client}"
        return f"{metric[0].upper()}{metric[1:]}{of_model} on {data}{OVER_NAMES[self.over_clients]}"

    def __str__(self) -> str:
        """As the head of a table.

        Example:
            >>> str(Measure(at="rounds_to_target", target=0.9))
            'Rounds until accuracy on own data is 0.9'
            >>> str(Measure(over_clients="worst", at="median_of_last_ten"))
            'Accuracy on own data, worst client (%), median of the last ten rounds'
        """
        if self.is_to_target:
            unit = self.at.removesuffix("_to_target").capitalize()
            return f"{unit} until {self._name[0].lower()}{self._name[1:]} is {self.target:g}"
        when = {"last": f"last {self.step}", "best": f"best {self.step}"}
        return f"{self.label}, {when.get(self.at, f'median of the last ten {self.step}s')}"


def _check_target(given: Mapping[str, Any], metric: str) -> None:
    at, over, target = given.get("at"), given.get("over", "rounds"), given.get("target")
    if target is None and at in TO_TARGET:
        raise ValueError(f"`measure.at: {at}` needs a `target`, such as 0.9.")
    require(target is None or is_number(target), "`measure.target` must be a number", target)
    if over != "rounds" and target is not None:
        raise ValueError(
            f"`measure.over: {over}` has no rounds, bytes or seconds to a target; set `at: last`, and no `target`."
        )
    if over == "newcomers":
        require(
            OF_NEWCOMERS.search(metric) is not None,
            "`measure.metric` of newcomers must be metric/model_on_unseen, the model one of personal, finetuned and "
            "scratch, such as acc/personal_on_unseen",
            metric,
        )


def _check_kinds(given: Mapping[str, Any]) -> None:
    client, stage, percent = given.get("client"), given.get("stage"), given.get("percent", True)
    require(client is None or is_whole(client, 0), "`measure.client` must be the id of a client", client)
    require(isinstance(stage, str | None), "`measure.stage` must be the name of a stage", stage)
    require(isinstance(percent, bool), "`measure.percent` must be true or false", percent)
    if client is not None and "over_clients" in given:
        raise ValueError("`measure.client` and `measure.over_clients` exclude each other; give one.")

"""What a study measures: one number of each run, from its records.

A metric is named metric/model_on_data. The model `client` is the one that a client itself would use: its personal
model, or the global one if the method has no other.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from fedlit.studies.options import check_keys, is_number

At = Literal["last", "best", "median_of_last_ten", "rounds_to_target", "bytes_to_target", "seconds_to_target"]
OverClients = Literal["mean", "worst", "worst_tenth", "spread"]
TO_TARGET: tuple[At, ...] = ("rounds_to_target", "bytes_to_target", "seconds_to_target")
Over = Literal["rounds", "epochs", "newcomers"]
Direction = Literal["max", "min"]
KEYS = ("metric", "at", "target", "over_clients", "client", "stage", "over", "percent", "direction")
OF_NEWCOMERS = re.compile(r"/(client|personal|finetuned|scratch)_on_unseen$")
KEY = re.compile(r"(?P<metric>.+)/(?P<model>\w+)_on_(?P<data>\w+)")


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
        if not isinstance(metric, str) or KEY.fullmatch(metric) is None:
            raise ValueError(
                f"`measure.metric` must be metric/model_on_data, such as acc/global_on_own, got {metric!r}."
            )
        _check_choice("at", given.get("at", cls.at), get_args(At))
        _check_choice("over_clients", given.get("over_clients", cls.over_clients), get_args(OverClients))
        _check_choice("over", given.get("over", cls.over), get_args(Over))
        _check_target(given.get("at", cls.at), given.get("target"))
        over = given.get("over", cls.over)
        if over != "rounds" and (given.get("at") in TO_TARGET or given.get("target") is not None):
            raise ValueError(
                f"`measure.over: {over}` has no rounds, bytes or seconds to a target; set `at: last`, and no `target`."
            )
        if over == "newcomers" and OF_NEWCOMERS.search(metric) is None:
            raise ValueError(
                "`measure.metric` of newcomers must be metric/model_on_unseen, the model one of personal, finetuned "
                f"and scratch, such as acc/personal_on_unseen, got {metric!r}."
            )
        _check_client(given)
        stage = given.get("stage")
        if stage is not None and not isinstance(stage, str):
            raise ValueError(f"`measure.stage` must be the name of a stage, got {stage!r}.")
        percent = given.get("percent", metric.startswith("acc/"))
        if not isinstance(percent, bool):
            raise ValueError(f"`measure.percent` must be true or false, got {percent!r}.")
        if given.get("direction") is not None:
            _check_choice("direction", given["direction"], get_args(Direction))
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
        return self._kind == other._kind

    @property
    def _kind(self) -> tuple[str, str]:
        return self.metric.rpartition("/")[0], self.at if self.is_to_target else ""

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
        """What the number is multiplied by where it is shown."""
        if self.percent and not self.is_to_target:
            return 100.0
        return 1.0

    def __str__(self) -> str:
        """As the head of a table.

        Example:
            >>> str(Measure(at="rounds_to_target", target=0.9))
            'rounds until acc/client_on_own is 0.9'
            >>> str(Measure(over_clients="worst"))
            'acc/client_on_own of the worst client in %, last'
        """
        if self.is_to_target:
            unit = self.at.removesuffix("_to_target")
            return f"{unit} until {self.metric}{self._whose} is {self.target:g}"
        unit = " in %" if self.percent else ""
        return f"{self.metric}{self._whose}{unit}, {self.at.replace('_', ' ')}"

    @property
    def _whose(self) -> str:
        if self.client is not None:
            return f" of client {self.client}"
        words = {
            "worst": " of the worst client",
            "worst_tenth": " of the worst tenth",
            "spread": ", spread over clients",
        }
        whose = " of newcomers" if self.over == "newcomers" else ""
        return whose + words.get(self.over_clients, "")


def _check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"`measure.{name}` must be one of {', '.join(allowed)}, got {value!r}.")


def _check_target(at: str, target: Any) -> None:
    if target is None:
        if at in TO_TARGET:
            raise ValueError(f"`measure.at: {at}` needs a `target`, such as 0.9.")
        return
    if not is_number(target):
        raise ValueError(f"`measure.target` must be a number, got {target!r}.")


def _check_client(given: Mapping[str, Any]) -> None:
    client = given.get("client")
    if client is None:
        return
    if isinstance(client, bool) or not isinstance(client, int) or client < 0:
        raise ValueError(f"`measure.client` must be the id of a client, got {client!r}.")
    if "over_clients" in given:
        raise ValueError("`measure.client` and `measure.over_clients` exclude each other; give one.")

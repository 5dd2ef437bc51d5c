r"""Tasks: losses, metrics and predictions of outputs.

| task | outputs | targets | loss | first metric | a prediction |
|---|---|---|---|---|---|
| `Classification` | ``[N, C]`` | classes ``[N]`` | cross-entropy | `acc` | probabilities ``[N, C]`` |
| `Regression` | as targets | floats of any shape | mean squared error | `r2` | the outputs |
| `MultiLabel` | ``[N, L]`` | 0 or 1, ``[N, L]`` | binary cross-entropy | `f1` | probabilities ``[N, L]`` |
| `LanguageModel` | ``[N, T, V]`` | tokens ``[N, T]`` | cross-entropy of a token | `perplexity` | the likeliest tokens |
| `Segmentation` | ``[N, C, H, W]`` | classes ``[N, H, W]`` | cross-entropy of a pixel | `iou` | the likeliest classes |

A method has a `task`; its `loss` and `metrics` are the task's unless it has its own (docs/tasks.md).
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric, R2Score
from torchmetrics.classification import BinaryF1Score, MulticlassJaccardIndex

from fedlit.bounds import check_count, check_share
from fedlit.losses import labelled_cross_entropy

CHOSEN = ("logits", "out")  # of Hugging Face's models, of torchvision's segmentation
NO_CLASS = -100  # cross-entropy's default for a target to leave out


class Task:
    """The loss, metrics and predictions of a method's outputs; a task of your own overrides `loss` and what differs."""

    name: ClassVar[str] = "a task of its own"

    def output(self, given: Any) -> Any:
        """The tensor of a network's outputs: of several `logits` or `out`, of a mapping with one tensor that one."""
        if isinstance(given, Tensor):
            return given
        named = given if isinstance(given, Mapping) else {name: getattr(given, name, None) for name in CHOSEN}
        found = [named[name] for name in CHOSEN if isinstance(named.get(name), Tensor)]
        if not found:
            found = [value for value in named.values() if isinstance(value, Tensor)]
            if len(found) != 1:
                raise ValueError(
                    f"a network must give one tensor, got {_described(given)}; of a mapping `logits` or `out` is "
                    "taken, of anything else what `output` of a task of your own returns."
                )
        return found[0]

    def loss(self, output: Any, target: Any) -> Tensor:
        """The mean loss of a batch."""
        raise NotImplementedError

    def metrics(self) -> dict[str, Metric]:
        """Metrics beside the loss, by name; best.ckpt is the best of the first."""
        return {}

    def measured(self, output: Any, target: Any) -> tuple[Any, Any]:
        """The arguments of metrics for a batch."""
        return self.output(output), target

    def prediction(self, output: Any) -> Tensor:
        """The outputs as predictions."""
        return self.output(output)


class Classification(Task):
    """One of some classes: cross-entropy, and accuracy (`acc`)."""

    name = "classification"

    def loss(self, output: Any, target: Tensor) -> Tensor:
        return F.cross_entropy(self.output(output), target)

    def metrics(self) -> dict[str, Metric]:
        return {"acc": Accuracy()}

    def prediction(self, output: Any) -> Tensor:
        return self.output(output).float().softmax(dim=1)


class Regression(Task):
    """Numbers: the mean squared error, and R2 (`r2`), the mean over outputs if there are several."""

    name = "regression"

    def loss(self, output: Any, target: Tensor) -> Tensor:
        z = self._fitted(output, target)
        return F.mse_loss(z, target.to(z.dtype))

    def metrics(self) -> dict[str, Metric]:
        return {"r2": R2Score()}

    def measured(self, output: Any, target: Tensor) -> tuple[Tensor, Tensor]:
        z = self._fitted(output, target)
        target = target.to(z.dtype)
        if target.ndim > 1:
            return z.flatten(1), target.flatten(1)
        return z, target

    def _fitted(self, output: Any, target: Tensor) -> Tensor:
        """Outputs ``[N, 1]`` stand for targets ``[N]``, and the other way round; anything else would be broadcast."""
        z = self.output(output)
        if (*z.shape, 1) == target.shape or z.shape == (*target.shape, 1):
            return z.view_as(target)
        if z.shape != target.shape:
            raise ValueError(f"outputs must have the shape of the targets, {list(target.shape)}, got {list(z.shape)}.")
        return z


class MultiLabel(Task):
    """Any of some labels: binary cross-entropy, and F1 (`f1`) over all labels of all samples (micro).

    Args:
        threshold: The probability in [0, 1] from which a label counts as given.
    """

    name = "multi-label"

    def __init__(self, threshold: float = 0.5) -> None:
        self.threshold = check_share("model.task.threshold", threshold)

    def loss(self, output: Any, target: Tensor) -> Tensor:
        z = self.output(output)
        if z.shape != target.shape:
            raise ValueError(f"outputs must have the shape of the targets, {list(target.shape)}, got {list(z.shape)}.")
        return F.binary_cross_entropy_with_logits(z, target.to(z.dtype))

    def metrics(self) -> dict[str, Metric]:
        return {"f1": BinaryF1Score(threshold=self.threshold)}

    def measured(self, output: Any, target: Tensor) -> tuple[Tensor, Tensor]:
        return self.prediction(output), target.long()

    def prediction(self, output: Any) -> Tensor:
        return self.output(output).sigmoid()


class LanguageModel(Task):
    """The next token of every place: cross-entropy, and perplexity (`perplexity`).

    Args:
        ignore_index: The target of places that do not count, such as padding.
    """

    name = "language modelling"

    def __init__(self, ignore_index: int = NO_CLASS) -> None:
        self.ignore_index = check_count("model.task.ignore_index", ignore_index, least=-(2**31))

    def loss(self, output: Any, target: Tensor) -> Tensor:
        z = self.output(output)
        if z.shape[:-1] != target.shape:
            raise ValueError(f"outputs must be [*targets, V], with targets {list(target.shape)}, got {list(z.shape)}.")
        return labelled_cross_entropy(z.flatten(end_dim=-2), target.flatten(), self.ignore_index)

    def metrics(self) -> dict[str, Metric]:
        return {"perplexity": Perplexity(self.ignore_index)}

    def prediction(self, output: Any) -> Tensor:
        return self.output(output).argmax(dim=-1)


class Segmentation(Task):
    """A class for every pixel: cross-entropy, and the intersection over union (`iou`), the mean over classes.

    Args:
        num_classes: Of a pixel.
        ignore_index: The target of pixels that do not count, such as 255; none by default.
    """

    name = "segmentation"

    def __init__(self, num_classes: int, ignore_index: int | None = None) -> None:
        self.num_classes = check_count("model.task.num_classes", num_classes, least=2)
        self.ignore_index = ignore_index
        if ignore_index is not None:
            check_count("model.task.ignore_index", ignore_index, least=-(2**31))

    def loss(self, output: Any, target: Tensor) -> Tensor:
        z = self.output(output)
        y = _pixels(target)
        if z.shape != (len(y), self.num_classes, *y.shape[1:]):
            wanted = [len(y), self.num_classes, *y.shape[1:]]
            raise ValueError(f"outputs must be {wanted} for targets {list(target.shape)}, got {list(z.shape)}.")
        ignored = NO_CLASS if self.ignore_index is None else self.ignore_index
        return labelled_cross_entropy(z, y, ignored)

    def metrics(self) -> dict[str, Metric]:
        return {"iou": MulticlassJaccardIndex(self.num_classes, ignore_index=self.ignore_index)}

    def measured(self, output: Any, target: Tensor) -> tuple[Tensor, Tensor]:
        return self.output(output), _pixels(target)

    def prediction(self, output: Any) -> Tensor:
        return self.output(output).argmax(dim=1)


def _pixels(target: Tensor) -> Tensor:
    """Masks may come as images of one channel, and as bytes."""
    if target.ndim == 4 and target.shape[1] == 1:
        target = target[:, 0]
    return target.long()


def _described(given: Any) -> str:
    if isinstance(given, Mapping):
        return f"a mapping of {', '.join(map(str, given)) or 'nothing'}"
    return f"a {type(given).__name__}"


class Accuracy(Metric):
    """The share of samples whose largest output is that of their class.

    Example:
        >>> float(Accuracy()(torch.tensor([[9.0, 0.0], [0.0, 9.0]]), torch.tensor([0, 0])))
        0.5
    """

    higher_is_better = True
    is_differentiable = False
    full_state_update = False
    right: Tensor
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("right", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("total", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, output: Tensor, target: Tensor) -> None:
        # Not in place: a state may be of a Trainer's inference mode.
        self.right = self.right + (output.argmax(dim=1) == target).sum()
        self.total = self.total + target.numel()

    def compute(self) -> Tensor:
        return self.right / self.total


class Perplexity(Metric):
    r"""How many tokens a model is undecided between: ``exp`` of the mean cross-entropy of a token.

    Args:
        ignore_index: The target of places that do not count.

    Example:
        >>> round(float(Perplexity()(torch.zeros(1, 3, 4), torch.tensor([[0, 1, 2]]))), 4)
        4.0
    """

    higher_is_better = False
    is_differentiable = True
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, ignore_index: int = NO_CLASS) -> None:
        super().__init__()
        self.ignore_index = ignore_index
        self.add_state("total", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, output: Tensor, target: Tensor) -> None:
        z = output.flatten(end_dim=-2)
        y = target.flatten()
        losses = F.cross_entropy(z, y, ignore_index=self.ignore_index, reduction="none")
        self.total = self.total + losses.double().sum()
        self.count = self.count + (y != self.ignore_index).sum()

    def compute(self) -> Tensor:
        return (self.total / self.count).exp()

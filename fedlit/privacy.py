r"""Differential privacy of clients, by a server that is trusted. McMahan et al., 2018. https://arxiv.org/abs/1710.06963

Every client takes part in a round by itself with probability q. Its update is clipped, the sum is noised, and divided
by the expected number of clients, which does not depend on which took part:

.. math:: w' = w + \frac{1}{q N} \left( \sum_{k \in C} \min\left(1, \frac{S}{\|w_k - w\|}\right) (w_k - w)
          + \mathcal{N}(0, z^2 S^2 I) \right)

with S = `clip`, z = `noise_multiplier`, q = `trainer.fraction_fit` and N clients. One client more or less moves the sum
by at most S, so a round is a Gaussian mechanism on a Poisson sample; its epsilon at `delta` is accounted for by privacy
loss distributions. Koskela et al., 2020. https://arxiv.org/abs/1906.03049

Invariants: without noise, with an infinite clip and q = 1 it is FedAvg with uniform weights; one client moves the sum
by at most `clip`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

from fedlit.aggregation import State, Upload
from fedlit.aggregation.rules import clip_factors
from fedlit.aggregation.uploads import unflattened, vector
from fedlit.rng import secure_normal

LEAST_NOISE = 0.1
INTERVAL = 1e-3  # of the privacy loss; rounded up, so that epsilon is never reported too low


class ClientLevelDP:
    """Bounds what the global model reveals of any one client, whatever the others' data are.

    Every client counts the same, whatever the method's weighting. Needs the extra `dp`: pip install 'fedlit[dp]'.

    Args:
        clip: Largest norm of a client's update, over all that is shared.
        noise_multiplier: Standard deviation of the noise on the sum of updates, in units of `clip`; 0 is no privacy.
        delta: Probability with which the bound may fail; below 1 / clients.
        target_epsilon: The run ends before a round that would exceed it; by default there is no such end.
        noise_seed: Makes noise reproducible, and known to everybody who has the config. By default a run draws a
            secret, which determines noise and the clients of a round; only its checkpoints hold it.
    """

    def __init__(
        self,
        clip: float = 1.0,
        noise_multiplier: float = 1.0,
        delta: float = 1e-5,
        target_epsilon: float | None = None,
        noise_seed: int | None = None,
    ) -> None:
        if not clip > 0:
            raise ValueError(f"`trainer.privacy.clip` is a norm and must be above 0, got {clip}.")
        if not (isfinite(noise_multiplier) and noise_multiplier >= 0):
            raise ValueError(f"`trainer.privacy.noise_multiplier` must be at least 0, got {noise_multiplier}.")
        if 0 < noise_multiplier < LEAST_NOISE:  # it would hide nothing, and its accounting never end
            raise ValueError(
                f"`trainer.privacy.noise_multiplier` must be 0 or at least {LEAST_NOISE}, got {noise_multiplier}."
            )
        if noise_multiplier and not isfinite(clip):
            raise ValueError("`trainer.privacy.clip` must be finite where there is noise, which is in units of it.")
        if not 0 < delta < 1:
            raise ValueError(f"`trainer.privacy.delta` is a probability and must lie in (0, 1), got {delta}.")
        if target_epsilon is not None and not target_epsilon > 0:
            raise ValueError(f"`trainer.privacy.target_epsilon` must be above 0, got {target_epsilon}.")
        if noise_seed is not None and (not isinstance(noise_seed, int) or noise_seed < 0):
            raise ValueError(f"`trainer.privacy.noise_seed` must be a whole number from 0 on, got {noise_seed!r}.")
        self.clip = clip
        self.noise_multiplier = noise_multiplier
        self.delta = delta
        self.target_epsilon = target_epsilon
        self.noise_seed = noise_seed

    @property
    def needs_secret(self) -> bool:
        """Whether a run draws its noise from a secret; without noise there is none."""
        return self.noise_seed is None and self.noise_multiplier > 0

    def __repr__(self) -> str:
        """The settings that must not change when a run is resumed; a budget may be raised."""
        return f"ClientLevelDP(clip={self.clip}, noise_multiplier={self.noise_multiplier}, delta={self.delta})"


class OpaqueUploads:
    """Uploads that only the rule of `trainer.privacy` may read, and only once.

    Args:
        uploads: Of a round.
    """

    def __init__(self, uploads: Iterable[Upload]) -> None:
        self._uploads: Iterable[Upload] | None = uploads

    def __iter__(self) -> Iterator[Upload]:
        raise ValueError("`trainer.privacy`: `aggregate` may only pass uploads on to `self.combine`.")

    def opened(self) -> Iterable[Upload]:
        if self._uploads is None:
            raise ValueError("`trainer.privacy`: `aggregate` may combine uploads only once: twice would cost twice.")
        uploads = self._uploads
        self._uploads = None
        return uploads


class NoisedMean:
    """The rule of one round; it takes uploads one by one and keeps none.

    Args:
        privacy: Clip and noise.
        expected: Clients of a round on average, ``q N``.
        names: Of the shared state: a round without clients has no upload that names them.
        key: Of the round's noise; see `fedlit.rng.secure_normal`.
    """

    def __init__(self, privacy: ClientLevelDP, expected: float, names: Sequence[str], key: bytes) -> None:
        self.privacy = privacy
        self.expected = expected
        self.names = names
        self.key = key

    def __call__(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        if not isinstance(uploads, OpaqueUploads):
            raise ValueError("`trainer.privacy`: `aggregate` must combine the uploads as they came, not others.")
        like = {name: current[name] for name in self.names}
        base = vector(current, like)
        total = clipped_sum(uploads.opened(), base, like, self.privacy.clip)
        if self.privacy.noise_multiplier:
            deviation = self.privacy.noise_multiplier * self.privacy.clip
            total = total + deviation * secure_normal(self.key, len(total)).to(total)
        return unflattened(base + total / self.expected, like)


def clipped_sum(uploads: Iterable[Upload], base: Tensor, like: Mapping[str, Tensor], clip: float) -> Tensor:
    """The sum of updates from `base` ``[D]``, none longer than `clip`; their weights play no part.

    Example:
        >>> sent = [Upload(0, {"w": torch.tensor([3.0, 4.0])}), Upload(1, {"w": torch.tensor([0.0, 0.5])}, weight=9)]
        >>> clipped_sum(sent, torch.zeros(2), {"w": torch.zeros(2)}, clip=1.0)
        tensor([0.6000, 1.3000], dtype=torch.float64)
    """
    total = torch.zeros_like(base, dtype=torch.float64)
    for upload in uploads:
        update = vector(upload.state, like) - base
        total += clip_factors(update.norm(), clip) * update
    return total


class Accountant:
    """Epsilon after so many rounds.

    Args:
        privacy: Noise, delta and the budget.
        fraction: Probability with which a client takes part in a round.
    """

    def __init__(self, privacy: ClientLevelDP, fraction: float) -> None:
        self.privacy = privacy
        self._epsilons = [0.0]
        self._spent: Any = None
        self._round: Any = None
        if privacy.noise_multiplier:
            self._round = loss_of_a_round(privacy.noise_multiplier, fraction)

    def epsilon(self, rounds: int) -> float:
        """Of so many rounds together; the same bits in a run and in one that goes on from a checkpoint."""
        if self._round is None:
            return inf if rounds else 0.0
        while len(self._epsilons) <= rounds:
            self._spent = self._round if self._spent is None else self._spent.compose(self._round)
            self._epsilons.append(float(self._spent.get_epsilon_for_delta(self.privacy.delta)))
        return self._epsilons[rounds]

    def allows(self, rounds: int) -> bool:
        """Whether so many rounds stay within `target_epsilon`."""
        target = self.privacy.target_epsilon
        return target is None or self.epsilon(rounds) <= target


@cache
def loss_of_a_round(noise_multiplier: float, fraction: float) -> Any:
    """The distribution of the privacy loss of one round, by dp-accounting; needed by validation and again by a fit."""
    if find_spec("dp_accounting") is None:
        raise ValueError("`trainer.privacy` needs dp-accounting; install it by: pip install 'fedlit[dp]'")
    from dp_accounting.pld import privacy_loss_distribution  # takes seconds

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier, sampling_prob=fraction, value_discretization_interval=INTERVAL
    )

"""Visits of a round worked ahead: the next clients trained as one stack, in fast mode, where nothing speaks against it.

Law: `visit`, but for rounding. The same clients are stacked on one process and on many; whatever is not plain, or
fails, is left to a visit of its own.
"""

from collections import Counter, defaultdict
from collections.abc import Callable

from torch import nn

from fedlit.aggregation import State, Upload
from fedlit.data.batches import Batches
from fedlit.data.client import Client
from fedlit.engine.plan import Interrupted, Memory, Outcome, Plan
from fedlit.fast.begun_visit import Beginnings, factory_for
from fedlit.fast.perceptron import Layers
from fedlit.fast.permission import is_plain_data, is_same
from fedlit.fast.recognition import Perceptron
from fedlit.fast.stack import ROOM, Kind, Member, Stack

AT_ONCE = 16  # clients in a stack: more gain little
# Clients of a kind in a round, and their share of it, for stacks of one to be rare.
MANY = 4
SHARE = 0.25


class Cohort:
    """Visits of a round, worked ahead in stacks.

    Args:
        beginnings: Of the visits.
        clients: Of the round, on all processes.
        mine: Those that this process visits.
        plan_for: How a client trains.
        client_of: The client of an id, in this round.
        enter: Loads a client's state into the live module.
        server: What all begin with.
        names: Of the weight and the bias of each layer.
    """

    def __init__(
        self,
        beginnings: Beginnings,
        clients: list[int],
        mine: list[int],
        plan_for: Callable[[int], Plan],
        client_of: Callable[[int], Client],
        enter: Callable[[int], None],
        server: State,
        names: list[str],
    ) -> None:
        self.beginnings = beginnings
        self.module = beginnings.module
        self.plan_for = plan_for
        self.client_of = client_of
        self.enter = enter
        self.names = names
        self.order = list(server)
        self.weights = [server[name] for name in names[::2]]
        self.biases = [server[name] for name in names[1::2]]
        self.kinds = self._frequent({k: self._kind(k) for k in clients})
        self.mine = [k for k in mine if k in self.kinds]
        self.ahead: dict[int, tuple[Stack, int] | None] = {}  # None: must be visited by itself after all

    def outcome(self, k: int, memory: Memory) -> Outcome | None:
        """What a client's visit brings, who keeps the state that it has; None if it must be visited by itself."""
        if memory.optimizer:  # what an optimiser of another kind left behind is the visit's to pass on
            return None
        # Somebody may have hung a hook somewhere since the last client, unless nobody could.
        found = self.beginnings.perceptron(self.plan_for(k))
        if found is None:
            return None
        if k not in self.ahead and k in self.mine:
            self._work_ahead(k, found)
        place = self.ahead.pop(k, None)
        if place is None:
            return None
        stack, i = place
        client = stack.members[i].client
        if factory_for(self.module, client) is not stack.members[i].factory:  # somebody has changed it since
            return None
        self.module.client = client
        layers, loss = stack.trained(i)
        state = dict(zip(self.names, layers, strict=True))
        upload = Upload(k, {name: state[name] for name in self.order}, float(self.module.client_weight(client)))
        return Outcome(upload, Memory(memory.state), {"train_loss": loss})

    def network(self, outcome: Outcome) -> nn.Module:
        """What a visit has trained, to be looked at."""
        assert outcome.upload is not None  # a plain stage averages
        return Layers([outcome.upload.state[name] for name in self.names])

    def _work_ahead(self, k: int, found: Perceptron) -> None:
        self.enter(k)
        room = ROOM
        start = self.mine.index(k)
        members = defaultdict(list)
        deeper = sum(tensor.nbytes for tensor in (*self.weights[1:], *self.biases[1:]))
        for k in self.mine[start : start + AT_ONCE]:
            if room <= 0:
                break
            self.ahead[k] = None
            kind = self.kinds[k]
            member = self._member(k, kind, found)
            if member is not None:
                members[kind].append(member)
                room -= kind.num_bytes(*self.sizes) + deeper
        # What builds an optimiser or batches may have touched the network.
        if is_same(found, self.beginnings.perceptron(self.plan_for(k))):
            for kind, alike in members.items():
                self._train(kind, alike)

    def _train(self, kind: Kind, members: list[Member]) -> None:
        try:
            stack = Stack(self.weights, self.biases, members)
            stack.train(kind, self.plan_for(members[0].client.id).should_stop)
        except Interrupted:
            raise
        except Exception:  # one of them is bad, or all are too large: their own visits will tell
            return
        self.ahead |= {member.client.id: (stack, i) for i, member in enumerate(members)}

    @property
    def sizes(self) -> tuple[int, int]:
        """Features and width of the first layer."""
        width, features = self.weights[0].shape
        return features, width

    def _kind(self, k: int) -> Kind | None:
        try:
            plan = self.plan_for(k)
            client = self.client_of(k)
            if not client.sees_the_same_inputs:
                return None
            samples = client.num_opted_in if plan.stage.samples == "opted_in" else client.num_samples
            return Kind(samples, client.data.batch_size_of(k), plan.epochs, plan.steps)
        except Exception:  # its own visit will tell
            return None

    def _frequent(self, kinds: dict[int, Kind | None]) -> dict[int, Kind]:
        """The clients of kinds that are worth a stack.

        Counted over all processes, so that the same clients are stacked on one and on many.
        """
        enough = max(MANY, SHARE * len(kinds))
        counts = Counter(kinds.values())
        return {
            k: kind
            for k, kind in kinds.items()
            if kind is not None and counts[kind] >= enough and kind.fits(*self.sizes)
        }

    def _member(self, k: int, kind: Kind, found: Perceptron) -> Member | None:
        """The client, if its steps are plain; one that fails already here is left to its own visit, which will tell."""
        try:
            begun = self.beginnings.visit(self.client_of(k), self.plan_for(k), found)
            if begun is None:
                return None
            if not is_plain_data(found, begun.batches, kind.samples, kind.batch_size):
                return None
            assert isinstance(begun.batches, Batches)  # plain data lie in memory
            return Member(begun.client, begun.batches, begun.rate, begun.factory)
        except Exception:
            return None

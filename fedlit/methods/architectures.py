"""Networks of several architectures, as a server holds them: one for all clients that have the same."""

from collections.abc import Iterable

from torch import nn

from fedlit.aggregation import Upload
from fedlit.data.client import Client, Server
from fedlit.methods.factories import ClientNetworks, NetworkFactory, build, for_client, kind, numbered


class Architectures(nn.ModuleList):
    """A network of each architecture among the clients', the common one first.

    Args:
        network: Builds the common one, which is also the server's.
        client_networks: Another for some clients: a list with one for each, or a mapping from client id.

    Example:
        >>> Architectures(nn.Flatten, {1: nn.ReLU, 4: nn.ReLU})
        Architectures(
          (0): Flatten(start_dim=1, end_dim=-1)
          (1): ReLU()
        )
    """

    def __init__(self, network: NetworkFactory, client_networks: ClientNetworks) -> None:
        others = numbered(client_networks).values()
        factories = {kind(factory): factory for factory in (network, *others)}
        super().__init__(build(factory, "model.network") for factory in factories.values())
        self.kinds = list(factories)
        self.common = network
        self.per_client = client_networks

    def number_of(self, client: Client | None) -> int:
        """Which of them is the client's."""
        if client is None or isinstance(client, Server):
            return 0
        return self.kinds.index(kind(for_client(self.common, self.per_client, client)))

    def of(self, client: Client | None) -> nn.Module:
        """The client's."""
        return self[self.number_of(client)]


def number_in(names: Iterable[str]) -> int:
    """Of which architecture a state is, by the names of its entries in a method's `networks`.

    Example:
        >>> number_in(["networks.1.weight", "networks.1.bias"])
        1
    """
    return int(next(iter(names)).split(".")[1])


def by_architecture(uploads: Iterable[Upload]) -> dict[int, list[Upload]]:
    """The uploads of clients with the same architecture, in client order."""
    alike: dict[int, list[Upload]] = {}
    for upload in uploads:
        alike.setdefault(number_in(upload.state), []).append(upload)
    return alike

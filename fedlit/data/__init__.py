"""The data of a federation: who holds which samples, and batches of them."""

from fedlit.data.assignment import Saved
from fedlit.data.client import Client, Server
from fedlit.data.federated import FederatedData
from fedlit.data.joint import JointData

__all__ = ["Client", "FederatedData", "JointData", "Saved", "Server"]

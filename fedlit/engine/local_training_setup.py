"""What local training asks of a method and its precision, settled once a round for all clients that share them."""

from collections.abc import Collection

from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torchmetrics import Metric

from fedlit.aggregation import State
from fedlit.data.client import Client
from fedlit.engine.lightning_hooks import takes_batch_idx
from fedlit.engine.live_module import ModuleSnapshot
from fedlit.engine.logged_values import refusing_logs
from fedlit.engine.precision import autocast, has_scaler
from fedlit.methods.base import FederatedModule
from fedlit.methods.hooks import STEP_HOOKS, VALIDATION_HOOKS, overrides
from fedlit.methods.stage import Stage


class LocalTrainingSetup:
    """Structure, hooks and precision of a method in a stage.

    Args:
        fabric: Device and precision.
        module: The method.
        stage: That is trained.
        shared: Names of what travels both ways.

    Attributes:
        learner: What is trained: the module of the stage, or the method itself.
        uploaded: Names of what a client uploads in a stage that aggregates.
        personal_names: Names of what stays with a client: trained in the stage, neither shared nor the server's.
        autocast: Makes the context of a forward pass.
        is_scaled: Whether gradients are scaled (16-mixed).
        has_step_hooks: Whether a hook around a step is overridden, other than `has_update_hook`.
        has_update_hook: Whether `on_before_optimizer_step` is.
        has_sparse_gradients: Whether a layer gives them.
    """

    def __init__(self, fabric: Fabric, module: FederatedModule, stage: Stage, shared: Collection[str] = ()) -> None:
        self.learner = learner = stage.module or module
        found = list(module.modules()) if learner is module else [*module.modules(), *learner.modules()]
        self.lightning = [part for part in dict.fromkeys(found) if isinstance(part, LightningModule)]
        self.metrics = [part for part in found if isinstance(part, Metric)]
        self.federated = [module] if learner is module else [module, learner]
        self.module = module
        self.tensors: State = module.state_dict(keep_vars=True)
        self.structure = structure_of(self.tensors)
        self.uploaded = [*shared, *(name for name in self.tensors if name.startswith(module.upload_only))]
        self.personal_names = self._staying(stage, shared)
        self.autocast = autocast(fabric)
        self.is_scaled = has_scaler(fabric)
        self.takes_batch_idx = takes_batch_idx(learner.training_step)
        self.has_step_hooks = overrides(learner, STEP_HOOKS)
        self.has_update_hook = overrides(learner, frozenset({"on_before_optimizer_step"}))
        self.has_validation_hooks = overrides(learner, VALIDATION_HOOKS)
        self.has_sparse_gradients = any(getattr(part, "sparse", False) for part in learner.modules())
        self._has_own_weight = is_overridden("client_weight", module, FederatedModule)
        self.before = ModuleSnapshot(module)

    def weight_of(self, client: Client) -> float:
        """How much a client's upload counts."""
        if not self._has_own_weight:
            return float(self.module.client_weight(client))
        with refusing_logs(self.module, "client_weight"):
            return float(self.module.client_weight(client))

    def live_tensors(self) -> State:
        """The tensors of the method after local training, which must have left their structure as it was."""
        if self.before.has_same_structure():
            return self.tensors
        tensors = self.module.state_dict(keep_vars=True)  # a buffer that was set anew, for one
        if structure_of(tensors) != self.structure:
            raise ValueError("local training changed names, shapes, dtypes or devices of the state.")
        return tensors

    def _staying(self, stage: Stage, shared: Collection[str]) -> list[str]:
        names = set(self.tensors)
        if stage.module is not None:
            trained = {id(tensor) for tensor in stage.module.state_dict(keep_vars=True).values()}
            names = {name for name, tensor in self.tensors.items() if id(tensor) in trained}
        if stage.upload == "aggregate":
            names.difference_update(shared)
        elsewhere = self.module.server_only + self.module.download_only + self.module.upload_only
        return [name for name in self.tensors if name in names and not name.startswith(elsewhere)]


def structure_of(state: State) -> dict[str, tuple]:
    """What local training must leave as it is: names, shapes, dtypes, devices and layouts."""
    return {name: (tensor.shape, tensor.dtype, tensor.device, tensor.layout) for name, tensor in state.items()}

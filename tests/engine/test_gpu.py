"""What a run does on a GPU, on the pretend device."""

import gc
import io
from contextlib import redirect_stderr, redirect_stdout
from functools import partial

import pytest
import torch
from torch import nn
from toys import SGD, SmallCNN, equal, events, fitted, seeded, toy_data

from fedlit import FedAvg
from fedlit.methods import LocalOnly


def with_dropout():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 3))


def run(method, data=None, **options):
    federation = fitted(seeded(method), data, **{"accelerator": "gpu", "seed": 1, **options})
    return federation, {name: tensor.cpu() for name, tensor in federation.global_state.items()}


def on_the_cpu_beside_a_gpu():
    options = {"num_rounds": 1, "accelerator": "cpu", "client_timeout": 60.0}
    federation, _ = run(lambda: FedAvg(SmallCNN, SGD), default_root_dir=".", **options)
    left_out = events(federation.log_dir, "left_out")
    return torch.cuda.is_available(), torch.cuda.is_initialized(), len(left_out)


def test_a_run_on_the_cpu_leaves_the_gpu_alone(device_process):
    """Or no client could be trained in a forked process."""
    assert device_process.run(on_the_cpu_beside_a_gpu) == (True, False, 0)


# ------------------------------------------------------------------------------------------- what stays with clients

ADAM = partial(torch.optim.Adam, lr=0.01)


def memory_of(num_clients):
    gc.collect()  # what an earlier run left in circles
    before = torch.cuda.memory_allocated()
    federation, _ = run(partial(LocalOnly, with_dropout, ADAM), toy_data(num_clients=num_clients), num_rounds=1)
    state = federation.personal_states[0]
    gc.collect()
    return torch.cuda.memory_allocated() - before, {tensor.device.type for tensor in state.values()}


def memory_by_clients():
    memory_of(2)  # what is allocated once
    return [memory_of(number) for number in (2, 12)]


def test_personal_states_and_momenta_take_no_memory_of_the_gpu(device_process):
    (few, _), (many, _) = device_process.run(memory_by_clients)
    assert many == few


OPTIMIZERS = {
    "plain": ADAM,
    "fused": partial(ADAM, fused=True),
    "capturable": partial(ADAM, capturable=True),
    "LBFGS": partial(torch.optim.LBFGS, lr=0.1, max_iter=2),
}


class Counting(FedAvg):
    """Notes how often the host waits for the device in local training, beyond its epochs' ends."""

    waits: list[int] = []  # noqa: RUF012  (of this process)

    def on_train_start(self):
        import pretend_cuda

        Counting.waits.append(-pretend_cuda.counts()["waits"])

    def on_train_end(self):
        import pretend_cuda

        Counting.waits[-1] += pretend_cuda.counts()["waits"]


def gone_on(name, precision="32-true"):
    """A run in one go, the same resumed in its middle, and waits in a first and a last local training."""
    method = partial(Counting, with_dropout, OPTIMIZERS[name])
    options = {"optimizer_state": "keep", "precision": precision, "personal_memory": 0.0}  # all but one on disk
    at_once = run(method, toy_data(30), num_rounds=2, default_root_dir="once", **options)[1]
    run(method, toy_data(30), num_rounds=1, default_root_dir="twice", **options)
    resumed = run(method, toy_data(30), num_rounds=2, default_root_dir="twice", ckpt_path="last", **options)[1]
    return at_once, resumed, Counting.waits[0], Counting.waits[-1]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimiser_goes_on_on_a_gpu_as_if_it_had_not_been_moved(device_process, name):
    """Its counter of steps is where it counts: one on the device would be waited for in each step of a plain Adam."""
    at_once, resumed, first, last = device_process.run(gone_on, name)
    assert equal(at_once, resumed)
    assert last <= first or name == "LBFGS"  # which reads its history


class Steep(FedAvg):
    """Gradients that overflow in half precision at first, and not at a smaller scale."""

    def training_step(self, batch, batch_idx):
        return 10 * super().training_step(batch, batch_idx)


STEEP = partial(Steep, with_dropout, partial(torch.optim.SGD, lr=1e-5))
ONE_STEP = {"precision": "16-mixed", "local_steps": 1, "local_epochs": None, "enable_progress_bar": True}


def skipped_of(folder, **options):
    printed = io.StringIO()
    with redirect_stderr(printed), redirect_stdout(printed):
        federation, state = run(STEEP, default_root_dir=folder, **ONE_STEP, **options)
    found = {}
    for event in events(federation.log_dir, "steps_skipped"):
        found.setdefault(event["round"], []).append((event["client"], event["steps"]))
    return found, state, printed.getvalue()


def steep_runs():
    kept = skipped_of("kept", num_rounds=8)
    reset = skipped_of("reset", num_rounds=8, optimizer_state="reset")
    skipped_of("resumed", num_rounds=2)
    resumed = skipped_of("resumed", num_rounds=8, ckpt_path="last")
    initial = {name: tensor.cpu() for name, tensor in seeded(STEEP).state_dict().items()}
    return kept, reset, resumed, initial


def test_a_client_goes_on_with_its_loss_scale_and_one_without_a_step_is_named(device_process):
    (skipped, trained, printed), (at_reset, untrained, _), (resumed, again, _), initial = device_process.run(steep_runs)
    everybody = [(0, 1), (1, 1), (2, 1)]
    assert at_reset == dict.fromkeys(range(1, 9), everybody)
    assert equal(untrained, initial)
    assert skipped[1] == everybody
    assert len(skipped) < 8
    assert not equal(trained, initial)
    assert "round 1: client 2 was not trained: gradients overflowed and every step (1) was skipped" in printed
    assert resumed == skipped
    assert equal(again, trained)

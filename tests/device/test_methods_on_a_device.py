"""Every method on a CUDA device, in every precision: the CPU's results, resumed from it and back, without waits."""

from functools import partial
from itertools import product

import pytest
import torch
from every_method import METHODS, PLAIN, SGD
from toys import equal

from device.cases import counted_steps, global_model, trial, waits
from fedlit import FedAvg
from fedlit.methods import SCAFFOLD, Ditto, FedNova

# What a method differs by from the CPU. The pretend device rounds as the CPU does, so that single precision is exact;
# fast mode has shortcuts on the CPU that round otherwise. In mixed precision the two autocast other operations; in
# 16-mixed a step whose scaled gradients overflow is left out as well, of three or four that a client takes here.
TOLERANCE = {("32-true", True): 1e-5, ("32-true", False): 0.0}
TOLERANCE |= {("bf16-mixed", fast): 0.1 for fast in (True, False)}
TOLERANCE |= {("16-mixed", fast): 0.5 for fast in (True, False)}
SWIFT = {("FedAvg", "32-true", False), ("FML", "32-true", False), ("SCAFFOLD", "32-true", True)}
SWIFT |= {("Ditto", "16-mixed", False)}
ADAM = partial(torch.optim.Adam, lr=0.01)

everything = [
    pytest.param(method, *how, marks=() if (method, *how) in SWIFT else pytest.mark.slow)
    for method, how in product(METHODS, TOLERANCE)
]


@pytest.mark.parametrize(("method", "precision", "fast"), everything)
def test_a_method_ends_on_the_device_where_it_ends_on_the_cpu(device_process, method, precision, fast):
    found = device_process.run(trial, method, precision, fast)
    assert found["is_finite"]
    assert found["device"] <= TOLERANCE[precision, fast]
    assert found["resumed"] <= TOLERANCE[precision, fast]  # from the CPU to the device and back


def test_dittos_personal_networks_leave_fedavgs_random_numbers_alone(device_process):
    fedavg = device_process.run(global_model, FedAvg)
    assert equal(device_process.run(global_model, Ditto), fedavg)


def test_the_random_numbers_of_dropout_come_from_the_seed(device_process):
    runs = [device_process.run(global_model, FedAvg, seed=seed) for seed in (0, 0, 1)]
    assert equal(runs[0], runs[1])
    assert not equal(runs[0], runs[2])


@pytest.mark.parametrize(
    ("optimizer", "precision"), [(SGD, "32-true"), (PLAIN, "32-true"), (ADAM, "32-true"), (ADAM, "bf16-mixed")]
)
def test_a_step_does_not_wait_for_the_device(device_process, optimizer, precision):
    few, many = (device_process.run(waits, optimizer, precision, steps) for steps in (4, 12))
    assert many["kernels"] > few["kernels"]
    assert many["waits"] == few["waits"]


def test_in_16_mixed_the_scaler_asks_once_a_step_whether_a_gradient_overflowed(device_process):
    few, many = (device_process.run(waits, SGD, "16-mixed", steps) for steps in (4, 12))
    assert many["waits"] - few["waits"] == 3 * 8  # three clients, eight steps more
    assert many["wait:item"] - few["wait:item"] == 3 * 8


@pytest.mark.parametrize(("method", "counter"), [(SCAFFOLD, "K"), (FedNova, "tau")])
def test_steps_that_16_mixed_skips_are_not_counted(device_process, method, counter):
    found = device_process.run(counted_steps, method, counter)
    assert all(counted == taken for counted, taken in found)
    assert any(0 < taken < 12 for _, taken in found)

"""The pretend CUDA device behaves as a real one where tests rely on it."""

import os
import time

import pytest
import torch
from torch import nn

from device.process import FailedOnDevice


def sum_of_two_devices():
    return torch.ones(3, device="cuda") + torch.ones(3)


def draw_from_the_cpus_generator():
    return torch.rand(3, device="cuda", generator=torch.Generator())


def written_on_the_cpu():
    return torch.ones(()).add_(torch.ones((), device="cuda"))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (sum_of_two_devices, "Expected all tensors to be on the same device"),
        (written_on_the_cpu, "Expected all tensors to be on the same device"),
        (draw_from_the_cpus_generator, "Expected a 'cuda' device type for generator"),
    ],
)
def test_what_a_device_refuses_is_refused(device_process, function, message):
    with pytest.raises(FailedOnDevice, match=message):
        device_process.run(function)


def used_after_a_fork():
    torch.ones(3, device="cuda")
    child = os.fork()
    if child == 0:
        try:
            torch.ones(3, device="cuda")
        except RuntimeError as error:
            os._exit(7 if "Cannot re-initialize CUDA in forked subprocess" in str(error) else 8)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_device_in_use_is_refused_after_a_fork(device_process):
    assert device_process.run(used_after_a_fork) == 7


def waits_of_each():
    import pretend_cuda

    x = torch.arange(4.0, device="cuda")
    host = torch.zeros(4)
    pinned = torch.zeros(4, pin_memory=True)
    calls = {
        "x + 1": lambda: x + 1,
        "x[mask]": lambda: x[x > 1],
        "x[host indices]": lambda: x[torch.tensor([1, 2])],
        "x[device indices]": lambda: x[torch.ones(2, dtype=torch.long, device="cuda")],
        "item": lambda: x.sum().item(),
        "cpu": lambda: x.cpu(),
        "to the device": lambda: host.to("cuda"),
        "to the device, without blocking": lambda: pinned.to("cuda", non_blocking=True),
        "to pinned memory, without blocking": lambda: pinned.copy_(x, non_blocking=True),
        "to other memory, without blocking": lambda: host.copy_(x, non_blocking=True),
        "synchronize": torch.cuda.synchronize,
        "of a stream": lambda: torch.cuda.current_stream().synchronize(),
        "foreach": lambda: torch._foreach_copy_([x, x], [x + 1, x + 2]),
    }
    found = {}
    for name, call in calls.items():
        pretend_cuda.reset()
        call()
        found[name] = pretend_cuda.counts()["waits"]
    return found


def test_what_the_host_waits_for_is_counted(device_process):
    waits = device_process.run(waits_of_each)
    free = {
        "x + 1",
        "x[device indices]",
        "to the device, without blocking",
        "to pinned memory, without blocking",
        "foreach",
    }
    assert {name for name, number in waits.items() if number == 0} == free
    assert {number for name, number in waits.items() if name not in free} == {1}


def late_copy():
    x = torch.arange(3.0, device="cuda")
    pinned = torch.zeros(3, pin_memory=True).copy_(x, non_blocking=True)
    before = pinned.tolist()
    x.zero_()  # what is copied is what there was when it was asked for
    torch.cuda.current_stream().synchronize()
    return pinned.is_pinned(), before, pinned.tolist()


def test_a_copy_that_does_not_block_arrives_with_the_next_wait(device_process):
    is_pinned, before, after = device_process.run(late_copy)
    assert is_pinned
    assert before != [0.0, 1.0, 2.0]
    assert after == [0.0, 1.0, 2.0]


def trained(device, precision=None):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)).to(device)
    x, y = torch.randn(5, 1, 4, 4).to(device), torch.arange(5).to(device) % 3
    with torch.autocast(device, precision, enabled=precision is not None):
        loss = nn.functional.cross_entropy(network(x).softmax(dim=1), y)
    loss.backward()
    found = {**network.state_dict(), **{f"grad of {name}": p.grad for name, p in network.named_parameters()}}
    return {name: tensor.cpu() for name, tensor in found.items()}


def test_operations_are_those_of_the_cpu(device_process):
    expected = trained("cpu")
    found = device_process.run(trained, "cuda")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert found["1.running_mean"].abs().sum() > 0


def test_a_softmax_of_half_precision_has_a_gradient(device_process):
    exact = trained("cpu")
    for precision in (torch.float16, torch.bfloat16):
        found = device_process.run(trained, "cuda", precision)
        torch.testing.assert_close(found["grad of 3.weight"], exact["grad of 3.weight"], atol=2e-2, rtol=2e-2)


def test_a_function_that_ends_its_process_or_hangs_fails_alone(device_process):
    with pytest.raises(FailedOnDevice, match="abort: its process ended with -6"):
        device_process.run(os.abort)
    with pytest.raises(FailedOnDevice, match=r"sleep: no answer within 0\.1 s"):
        device_process.run(time.sleep, 60, timeout=0.1)
    assert device_process.run(torch.cuda.is_available)


def test_this_process_sees_no_device(device_process):
    assert device_process.run(torch.cuda.is_available)
    assert not torch.cuda.is_available()

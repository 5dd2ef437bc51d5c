"""The pretend CUDA device behaves as a real one where tests rely on it."""

import os

import pytest
import torch

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
    free = {"x + 1", "x[device indices]", "foreach"}
    free |= {"to the device, without blocking", "to pinned memory, without blocking"}
    assert {name for name, number in waits.items() if number == 0} == free
    assert {number for name, number in waits.items() if name not in free} == {1}


def test_this_process_sees_no_device(device_process):
    assert device_process.run(torch.cuda.is_available)
    assert not torch.cuda.is_available()

"""One torch thread per process: bits depend on the thread count, and small networks are faster with one."""

import torch

import fedlit  # noqa: F401  (first: it repairs torchvision before anything imports it)

torch.set_num_threads(1)

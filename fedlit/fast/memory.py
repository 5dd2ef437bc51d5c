"""glibc's allocator, told to keep large blocks for the next batch instead of asking the kernel for fresh pages."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h
KEPT, HALF_A_HEAP = 2**30, 2**25


def keep_large_blocks() -> None:
    """A training step frees and wants the same large tensors again; fresh pages would be faulted in each time.

    Blocks of up to a gigabyte come from the heap, and up to a gigabyte at its top is kept. On Linux with glibc, for the
    whole process; elsewhere nothing happens. Results do not change.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    # Before 2.35, glibc took no more than half a heap.
    if mallopt and (mallopt(M_MMAP_THRESHOLD, KEPT) or mallopt(M_MMAP_THRESHOLD, HALF_A_HEAP)):
        mallopt(M_TRIM_THRESHOLD, KEPT)

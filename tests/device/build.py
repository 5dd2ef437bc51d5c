"""Compile the pretend CUDA device, once per torch, Python, compiler and source.

The folder that comes of it lies in the user's cache and is all that a process needs on its PYTHONPATH.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = (HERE / "pretend_cuda.cpp", HERE / "pretend_cuda.py", HERE / "build.py")
OPTIONS = ("-O0", "-std=c++20", "-shared", "-fPIC", "-w", "-s")  # unoptimised: compiling takes longer than running
LIBRARIES = ("torch", "torch_cpu", "c10", "torch_python")

# Loads the library before anybody imports torch, which asks for the hooks of a device while it is imported.
SITECUSTOMIZE = """\
import pretend_cuda

pretend_cuda.library()
"""
METADATA = "Metadata-Version: 2.1\nName: pretend-cuda\nVersion: 0\n"
ENTRY_POINT = "[torch.backends]\npretend_cuda = pretend_cuda:autoload\n"


class CannotBuild(Exception):
    """This machine lacks what it takes to compile the device, or has no use for it."""


def built() -> Path:
    """The folder of the device, compiled now if it is not there yet; several processes may ask at once."""
    compiler = _compiler()
    cache = _cache()
    folder = cache / f"pretend-cuda-{_fingerprint(compiler)}"
    if folder.exists():
        return folder
    with (cache / "pretend-cuda.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = Path(tempfile.mkdtemp(dir=cache))
            try:
                _compile(compiler, unfinished)
                unfinished.rename(folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _compiler() -> str:
    import torch

    if torch.version.cuda is not None:
        raise CannotBuild("this torch is built for CUDA, which the pretend device would take the place of")
    compiler = shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise CannotBuild("there is no C++ compiler (CXX, c++, g++ or clang++)")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        raise CannotBuild("Python.h, which the device is compiled with, is not installed")
    return compiler


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedlit-tests"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written to
        folder = Path(tempfile.gettempdir()) / f"fedlit-tests-{os.getuid()}"
        folder.mkdir(exist_ok=True)
    return folder


def _fingerprint(compiler: str) -> str:
    import torch

    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    parts = [repr((torch.__version__, torch.__file__, sys.version, compiler)).encode(), version]
    parts += [source.read_bytes() for source in SOURCES]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _compile(compiler: str, folder: Path) -> None:
    import torch

    shutil.copy(HERE / "pretend_cuda.py", folder)
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    described = folder / "pretend_cuda-0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(METADATA)
    (described / "entry_points.txt").write_text(ENTRY_POINT)
    root = Path(torch.__file__).parent
    headers = (root / "include", root / "include/torch/csrc/api/include", sysconfig.get_paths()["include"])
    command = [compiler, *OPTIONS, *(f"-I{header}" for header in headers), str(HERE / "pretend_cuda.cpp")]
    command += ["-o", str(folder / "libpretend_cuda.so"), f"-L{root / 'lib'}", *(f"-l{name}" for name in LIBRARIES)]
    command += [f"-Wl,-rpath,{root / 'lib'}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"The pretend CUDA device does not compile:\n{' '.join(command)}\n{done.stderr[-4000:]}")

"""What is imported, and when."""

import subprocess
import sys


def run(script: str) -> None:
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_torchvision_and_scipy_are_imported_when_somebody_uses_them():
    run("""if True:
        import sys
        import fedlit, torchmetrics
        assert not any(name.startswith(("torchvision", "scipy.signal")) for name in sys.modules)
        from torchmetrics.functional.image import arniqa
        module = sys.modules["torchmetrics.functional.image.arniqa"]
        resized = module.transforms.Resize(7)
        assert type(resized) is sys.modules["torchvision"].transforms.Resize
        import scipy.signal
        assert scipy.signal.hilbert([1.0, 2.0]).shape == (2,)
    """)


def test_torchmetrics_itself_would_import_them():
    run("""if True:
        import sys
        import fedlit._imports
        fedlit._imports.DEFERRED.clear()
        import torchmetrics
        assert {"torchvision", "scipy.signal"} <= set(sys.modules)
    """)

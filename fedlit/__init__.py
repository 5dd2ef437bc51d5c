"""placeholder"""

import fedlit._torchvision  # noqa: F401  (before anything imports torchvision)

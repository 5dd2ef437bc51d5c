"""Where `Saved` stood in 0.1; recipes of that time go on working for one release."""

import warnings

from fedlit.data.assignment import Saved
from fedlit.notices import Notice

__all__ = ["Saved"]
warnings.warn("`fedlit.assignment.Saved` is now `fedlit.data.Saved`.", Notice, stacklevel=2)

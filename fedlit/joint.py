"""Where `JointData` stood in 0.1; recipes of that time go on working for one release."""

import warnings

from fedlit.data.joint import JointData
from fedlit.notices import Notice

__all__ = ["JointData"]
warnings.warn("`fedlit.joint.JointData` is now `fedlit.data.JointData`.", Notice, stacklevel=2)

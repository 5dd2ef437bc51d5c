"""Where `JointData` stood in 0.1; recipes of that time go on working for one release."""

import warnings

from fedlit.data.joint import JointData

__all__ = ["JointData"]
warnings.warn("`fedlit.joint.JointData` is now `fedlit.data.JointData`.", stacklevel=2)

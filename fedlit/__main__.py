"""python -m fedlit"""

import os
import sys

if not sys.flags.safe_path and sys.path[0] == os.getcwd():  # by Python's `-m`
    sys.path.pop(0)  # the command puts it last, so that no file there takes the place of an installed module

from fedlit.cli.command import main

main()

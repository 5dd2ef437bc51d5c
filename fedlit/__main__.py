"""python -m fedlit"""

from fedlit.cli import main

main()

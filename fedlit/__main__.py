"""python -m fedlit"""

from fedlit.cli.command import main

main()

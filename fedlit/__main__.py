"""python -m fedlit"""

from fedlit.command import main

main()

"""The module behind `python -m antiphon_command`, which is the command `antiphon`."""

from antiphon_command import main

main()

"""`python -m antiphon_command` is `antiphon`."""

from antiphon_command import main

main()

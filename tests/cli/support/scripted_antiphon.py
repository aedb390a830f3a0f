"""`antiphon`, except that a worker it starts plays the script named in ANTIPHON_TEST_SCRIPT."""

import sys

import antiphon_command.processes.backoff
import antiphon_command.processes.child
from antiphon_command.command import main

antiphon_command.processes.child.GUARDED = "tests.cli.support.scripted_child"
antiphon_command.processes.backoff.FIRST_PAUSE_S = 0.01
sys.exit(main())

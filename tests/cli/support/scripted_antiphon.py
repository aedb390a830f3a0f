"""`antiphon`, except that a worker it starts plays the script named in ANTIPHON_TEST_SCRIPT."""

import sys

import antiphon.cli.processes.backoff
import antiphon.cli.processes.child
from antiphon.cli.main import main

antiphon.cli.processes.child.GUARDED = "tests.cli.support.scripted_child"
antiphon.cli.processes.backoff.FIRST_PAUSE_S = 0.01
sys.exit(main())

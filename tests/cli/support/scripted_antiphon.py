"""`antiphon`, except that a worker it starts plays the script named in ANTIPHON_TEST_SCRIPT."""

import sys

import antiphon.cli.child
import antiphon.cli.stack
from antiphon.cli.main import main

antiphon.cli.child.GUARDED = "tests.cli.support.scripted_child"
antiphon.cli.stack.FIRST_PAUSE_S = 0.01
sys.exit(main())

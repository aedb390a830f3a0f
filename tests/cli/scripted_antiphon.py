"""`antiphon`, except that a worker it starts plays the script named in ANTIPHON_TEST_SCRIPT."""

import sys

import antiphon.cli.child
from antiphon.cli.main import main

antiphon.cli.child.GUARDED = "tests.cli.scripted_child"
sys.exit(main())

"""`python -m antiphon.cli` is `antiphon`."""

import sys

from antiphon.cli.main import main

sys.exit(main())

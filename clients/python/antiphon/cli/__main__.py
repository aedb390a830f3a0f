"""`python -m antiphon.cli` is `antiphon`."""

from antiphon.cli.main import leave, main

leave(main())

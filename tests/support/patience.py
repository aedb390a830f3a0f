"""How long tests wait for what must come.

It ends tests that hang and is no measure of speed: where four processes of tests share two cores,
each may stand still for seconds.
"""

from typing import Final

PATIENCE_S: Final = 60.0
PATIENCE_MS: Final = 1000 * PATIENCE_S
START_S: Final = 120.0

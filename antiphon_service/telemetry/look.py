"""The style that the web page and all status pages share: `look.css` beside this module."""

from pathlib import Path
from typing import Final

STYLE: Final = Path(__file__).with_name("look.css").read_text()

"""Write docs/configuration.md from the table of keys: sh tools/python tools/configuration.py."""

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT / "src"))

from fumehood.core.config_keys import manual  # noqa: E402 - found only now

(CHECKOUT / "docs/configuration.md").write_text(manual())

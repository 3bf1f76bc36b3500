"""The gateway's tests use the fake engine's client."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "engines"))

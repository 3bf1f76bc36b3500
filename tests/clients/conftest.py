"""Clients are tried against the stand-ins of the gateway's tests."""

import sys
from pathlib import Path

for folder in ("serve", "engines"):
    sys.path.append(str(Path(__file__).parent.parent / folder))

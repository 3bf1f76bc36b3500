"""Clients are tried against the stand-ins of the gateway's tests, batches against a service."""

import sys
from pathlib import Path

for folder in ("serve", "engines", "up", "models"):
    sys.path.append(str(Path(__file__).parent.parent / folder))

"""What tests of batches share with those of engines, gateway and service."""

import sys
from pathlib import Path

for folder in ("engines", "serve", "up", "models"):
    sys.path.append(str(Path(__file__).parent.parent / folder))

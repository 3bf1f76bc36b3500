"""The makers of GGUF headers live with the tests of models."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "models"))

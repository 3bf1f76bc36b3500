"""Asks a foreign Python environment what is in it; run by its own python, so nothing of ours.

`python -I ask_environment.py vllm|lmdeploy` writes one JSON object as its last line.
"""

import json
import sys
from importlib.metadata import PackageNotFoundError, distributions, version


def installed(*names: str) -> str | None:
    """The version of the first package that is there."""
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def main(engine: str) -> dict[str, object]:
    """What this environment is."""
    import torch

    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
    found: dict[str, object] = {
        "version": installed(engine, f"{engine}-cpu"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "architectures": (flags or "").split(),
        "packages": sorted(
            f"{d.metadata['Name']}=={d.version}" for d in distributions() if d.metadata["Name"]
        ),
    }
    if engine == "vllm":
        from vllm import ModelRegistry

        found["model_classes"] = sorted(ModelRegistry.get_supported_archs())
    else:
        from lmdeploy import turbomind
        from lmdeploy.turbomind.supported_models import SUPPORTED_ARCHS

        found["model_classes"] = sorted(SUPPORTED_ARCHS)
        broken = getattr(turbomind, "_import_error", None)
        found["trouble"] = None if broken is None else str(broken)[:500]
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1])) + "\n")

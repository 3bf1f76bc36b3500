"""Ray is loaded by the modules below `fleet/on_ray/` alone, and these by none at its own import."""

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "workhorse"
WITH_RAY = SOURCE / "fleet" / "on_ray"


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_only_one_folder_imports_ray() -> None:
    files = [path for path in SOURCE.rglob("*.py") if not path.is_relative_to(WITH_RAY)]
    ours = [path for path in WITH_RAY.glob("*.py") if path.name != "__init__.py"]
    assert any("ray" in {name.split(".")[0] for name in imported(path)} for path in ours)
    found = {p.name for p in files if any(n.split(".")[0] == "ray" for n in imported(p))}
    assert found == set()


def test_no_command_and_no_module_of_the_fleet_loads_ray() -> None:
    names = [
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        for folder in ("fleet", "cli")
        for path in sorted((SOURCE / folder).glob("*.py"))
        if path.name != "__init__.py"
    ]
    script = (
        "import sys, importlib\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "sys.exit('ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

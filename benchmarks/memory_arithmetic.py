"""The memory arithmetic against llama.cpp's own dry run, byte for byte.

    python benchmarks/memory_arithmetic.py ENGINE_MEMORY [--architectures DIR]

ENGINE_MEMORY is `engine_memory.cpp` of this folder, built against a llama.cpp tree:

    c++ -std=c++17 -O1 -I include -I src -I ggml/include engine_memory.cpp -o engine_memory \\
        build/src/libllama.a build/ggml/src/lib*.a -fopenmp -lpthread -ldl

Makes header-only files of published shapes (tests/models/published_shapes.py, odd_shapes.py), asks
the engine what each would take, writes its figures where the tests find them
(tests/models/engine_memory.json) and the table in docs/measured/. With DIR, the small models of
every architecture that llama.cpp's `test-llama-archs --out DIR` writes are asked about too, and
their headers packed into tests/models/every_architecture.tar.xz. Takes a minute.
"""

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent / "tests" / "models"
sys.path.insert(0, str(TESTS))

import memory_table  # type: ignore[import-not-found]  # noqa: E402
from odd_shapes import ODD  # type: ignore[import-not-found]  # noqa: E402
from published_shapes import PUBLISHED  # type: ignore[import-not-found]  # noqa: E402

from workhorse.models.gguf import read_gguf  # noqa: E402
from workhorse.models.header import read_header  # noqa: E402

# Context of one slot, slots, micro-batch, types of K and V, flash attention.
SETTINGS = (
    (2048, 1, 512, "f16", "f16", 1),
    (1000, 3, 128, "f16", "f16", 1),
    (32768, 1, 2048, "f16", "f16", 1),
    (8192, 4, 512, "q8_0", "q8_0", 1),
    (16384, 2, 512, "q8_0", "q4_0", 1),
    (4096, 2, 512, "f16", "f16", 0),
)


def ask(program: Path, file: Path) -> dict[str, list[int]]:
    """What the engine says of `file` by the number of the setting: tensors, buffer, kept, compute.

    One process a setting: after some models the library cannot make a second context. A setting
    that it refuses is left out.
    """
    rows = {}
    for number, setting in enumerate(SETTINGS):
        words = [str(value) for value in (*setting, setting[1])]
        run = subprocess.run([program, file, *words], capture_output=True, text=True, check=False)
        said = json.loads(run.stdout) if run.returncode == 0 and run.stdout else None
        if said:
            rows[str(number)] = [said[key] for key in ("tensors", "model", "context", "compute")]
        else:
            print(f"{file.name} {setting}: refused: {run.stderr.strip()[:200]}", file=sys.stderr)
    return rows


def published(folder: Path) -> Iterator[tuple[str, Path]]:
    """The header-only files of every published shape."""
    makers = {name: shape.header for name, shape in PUBLISHED.items()} | ODD
    for name, make in makers.items():
        yield name, make().write(folder / f"{name.replace(' ', '-')}.gguf")


def pack(folder: Path) -> dict[str, int]:
    """Put the headers of all models in `folder` into the tests' archive; their whole sizes."""
    sizes = {}
    with tarfile.open(TESTS / "every_architecture.tar.xz", "w:xz") as archive:
        for path in sorted(folder.glob("*.gguf")):
            with path.open("rb") as file:
                size = path.stat().st_size

                def read_at(offset: int, count: int) -> bytes:
                    file.seek(offset)
                    return file.read(count)

                end = read_header(read_at, size, name=path.name).data_offset_bytes
                member = tarfile.TarInfo(path.stem)
                member.size = end
                archive.addfile(member, io.BytesIO(read_at(0, end)))
            sizes[path.stem] = size
    return sizes


def lines_of(stored: dict[str, Any]) -> str:
    """JSON with a line a model, so that a change of one shows as one."""
    parts = []
    for key, value in stored.items():
        if isinstance(value, dict):
            inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            parts.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}"


def main() -> None:
    """Ask, store, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("program", type=Path, metavar="ENGINE_MEMORY")
    parser.add_argument("--architectures", type=Path, metavar="DIR")
    parser.add_argument("--engine", default="llama.cpp 0c1e57098", help="which it was built from")
    args = parser.parse_args()
    place = TESTS / "engine_memory.json"
    stored: dict[str, Any] = json.loads(place.read_text("utf-8")) if place.exists() else {}
    stored["engine"], stored["date"] = args.engine, datetime.now(UTC).date().isoformat()
    stored["settings"] = SETTINGS
    table: list[memory_table.Row] = []
    with tempfile.TemporaryDirectory() as folder:
        stored["published"] = {}
        for name, path in published(Path(folder)):
            stored["published"][name] = ask(args.program, path)
            table += memory_table.rows_of(name, read_gguf(path), stored, "published")
    if args.architectures:
        stored["architectures"] = {
            name: {
                "file_bytes": size,
                **ask(args.program, args.architectures / f"{name}.gguf"),
            }
            for name, size in pack(args.architectures).items()
        }
    place.write_text(lines_of(stored) + "\n", encoding="utf-8")
    print(memory_table.markdown(table))


if __name__ == "__main__":
    main()

"""Make a real llama-server fail in every way that one machine allows, and keep its logs.

    python tests/diagnose/provoke.py LLAMA_SERVER MODEL.gguf OUT [CASE ...]

Each case leaves OUT/CASE.log: the command, what the program wrote, and how it ended. Paths are
taken out. Needs root for the cases that limit memory, drop rights or mount a full disk; QEMU's
user emulation for another processor. Run by hand; the logs are kept in `provoked/`, with
two more that need another system: a root without libgomp, a library made for a newer glibc.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

STARTED_WITHIN_S = 60
MIB = 1024**2


@dataclass
class Bench:
    """What every case needs."""

    server: Path
    model: Path
    out: Path
    folder: Path  # scratch

    def command(self, *more: str, model: Path | None = None, port: int | None = None) -> list[str]:
        """A server that starts in a second or two."""
        return [
            str(self.server), "-m", str(model or self.model), "-c", "512", "-np", "1", "-t", "2",
            "--host", "127.0.0.1", "--port", str(port or free_port()), "-lv", "4", *more,
        ]  # fmt: skip


CASES: dict[str, Callable[[Bench], None]] = {}


def case(function: Callable[[Bench], None]) -> Callable[[Bench], None]:
    """Register a case under its function's name."""
    CASES[function.__name__] = function
    return function


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def keep(bench: Bench, name: str, command: list[str], text: str, ended: int | None) -> None:
    """Write one log without this machine's paths."""
    text = f"$ {shlex.join(command)}\n{text}"
    if ended is not None:
        how = f"signal {signal.Signals(-ended).name}" if ended < 0 else f"exit status {ended}"
        text += f"\n[ended: {how}]\n"
    for path, word in (
        (bench.folder, "/tmp/case"),
        (bench.model.parent, "/models"),
        (bench.server.parent, "/opt/llama"),
    ):
        text = text.replace(str(path), word)
    text = re.sub(r"/\S*/vendor/llama\.cpp/", "/src/llama.cpp/", text)  # where it was built
    (bench.out / f"{name}.log").write_text(text, encoding="utf-8")
    print(f"{name}: {text.splitlines()[-1] if text.splitlines() else ''}", flush=True)


def run(bench: Bench, name: str, command: list[str], **more: object) -> None:
    """Run a command that is expected to end by itself, and keep what it wrote."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, **more
    ) as process:  # type: ignore[call-overload]
        try:
            text, _ = process.communicate(timeout=STARTED_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            text, _ = process.communicate()
            print(f"{name}: did not end by itself", file=sys.stderr)
    keep(bench, name, command, text.decode(errors="replace"), process.returncode)


@contextmanager
def serving(bench: Bench, name: str, command: list[str]) -> Iterator[str]:
    """A server that starts; gives its address, and keeps its log when it has ended."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        url = f"http://127.0.0.1:{command[command.index('--port') + 1]}"
        try:
            for _ in range(STARTED_WITHIN_S * 10):
                if process.poll() is not None or answers(f"{url}/health"):
                    break
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.1)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.seek(0)
            keep(bench, name, command, log.read().decode(errors="replace"), process.returncode)


def answers(url: str, body: bytes | None = None) -> bool:
    """Whether the address answers with 200."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def limited(**limits: int) -> Callable[[], None]:
    """Sets resource limits in the child."""
    import resource

    def apply() -> None:
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (value, value))

    return apply


def changed(bench: Bench, name: str, old: bytes, new: bytes) -> Path:
    """A copy of the model with the first `old` replaced by as many bytes of `new`."""
    assert len(old) == len(new)
    data = bench.model.read_bytes()
    assert old in data, old
    path = bench.folder / f"{name}.gguf"
    path.write_bytes(data.replace(old, new, 1))
    return path


@case
def port_taken(bench: Bench) -> None:
    """Another program listens on the port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run(bench, "port_taken", bench.command(port=taken.getsockname()[1]))


@case
def truncated(bench: Bench) -> None:
    """The download stopped in the middle."""
    path = bench.folder / "truncated.gguf"
    path.write_bytes(bench.model.read_bytes()[: 40 * MIB])
    run(bench, "truncated", bench.command(model=path))


@case
def truncated_header(bench: Bench) -> None:
    """The download stopped in the header."""
    path = bench.folder / "header.gguf"
    path.write_bytes(bench.model.read_bytes()[:5000])
    run(bench, "truncated_header", bench.command(model=path))


@case
def bad_magic(bench: Bench) -> None:
    """A web page was saved under the model's name."""
    path = bench.folder / "page.gguf"
    path.write_bytes(b"<!DOCTYPE html><html><body>404 Not Found</body></html>" * 100)
    run(bench, "bad_magic", bench.command(model=path))


@case
def missing_model(bench: Bench) -> None:
    """A typing error in the path."""
    run(bench, "missing_model", bench.command(model=bench.folder / "nosuch.gguf"))


@case
def unknown_architecture(bench: Bench) -> None:
    """A model newer than the engine."""
    key = b"general.architecture" + struct.pack("<IQ", 8, 5)
    run(bench, "unknown_architecture",
        bench.command(model=changed(bench, "arch", key + b"llama", key + b"zebra")))  # fmt: skip


@case
def unknown_pre_tokenizer(bench: Bench) -> None:
    """A tokenizer newer than the engine."""
    data = bench.model.read_bytes()
    at = data.index(b"tokenizer.ggml.pre") + len(b"tokenizer.ggml.pre") + 4
    (size,) = struct.unpack_from("<Q", data, at)
    word = data[at + 8 : at + 8 + size]
    path = changed(bench, "pre", data[at - 4 : at + 8] + word, data[at - 4 : at + 8] + b"z" * size)
    run(bench, "unknown_pre_tokenizer", bench.command(model=path))


@case
def unknown_tensor_type(bench: Bench) -> None:
    """A quantisation newer than the engine."""
    data = bench.model.read_bytes()
    name = b"token_embd.weight"
    at = data.index(name) + len(name)
    (dimensions,) = struct.unpack_from("<I", data, at)
    at += 4 + 8 * dimensions
    old = data[at - 8 - 8 * dimensions - len(name) : at + 4]
    path = changed(bench, "type", old, old[:-4] + struct.pack("<I", 97))
    run(bench, "unknown_tensor_type", bench.command(model=path))


@case
def bad_flag(bench: Bench) -> None:
    """A flag that no version had."""
    run(bench, "bad_flag", bench.command("--gpu-memory-utilization", "0.9"))


@case
def renamed_flag(bench: Bench) -> None:
    """A flag of an older version."""
    run(bench, "renamed_flag", bench.command("--no-mmap"))


@case
def bad_cache_type(bench: Bench) -> None:
    """A KV type that the engine does not have."""
    run(bench, "bad_cache_type", bench.command("-ctk", "q2_K"))


@case
def cache_needs_flash_attention(bench: Bench) -> None:
    """A quantised V cache without flash attention."""
    run(bench, "cache_needs_flash_attention", bench.command("-ctv", "q8_0", "-fa", "off"))


@case
def address_space(bench: Bench) -> None:
    """`ulimit -v` too small for the KV cache."""
    run(bench, "address_space", bench.command("-c", "200000"), preexec_fn=limited(AS=900 * MIB))


@case
def too_much_context(bench: Bench) -> None:
    """A context far beyond what memory holds."""
    run(bench, "too_much_context", bench.command("-c", "100000000", "-fit", "off"))


@case
def memlock(bench: Bench) -> None:
    """`ulimit -l` smaller than the model."""
    as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]
    readable = bench.folder / "readable.gguf"
    shutil.copy(bench.model, readable)
    readable.chmod(0o644)
    command = as_user + bench.command("-lm", "mlock", "--port", str(free_port()), model=readable)
    with serving(bench, "memlock", command):
        pass


@case
def unreadable(bench: Bench) -> None:
    """The service's user may not read the model."""
    path = bench.folder / "private.gguf"
    shutil.copy(bench.model, path)
    path.chmod(0o600)
    as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    run(bench, "unreadable", as_user + bench.command(model=path))


@case
def memory_group(bench: Bench) -> None:
    """A control group with less memory than the model needs (version 1 hierarchy)."""
    group = Path(f"/sys/fs/cgroup/memory/workhorse-provoke-{os.getpid()}")
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(100 * MIB))

        def enter() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

        run(bench, "memory_group", bench.command("-lm", "none", "-c", "8192"), preexec_fn=enter)
    finally:
        group.rmdir()


@case
def old_processor(bench: Bench) -> None:
    """A processor without AVX2 (E5 v2), emulated."""
    run(bench, "old_processor", ["qemu-x86_64", "-cpu", "IvyBridge", *bench.command()])


@case
def full_disk(bench: Bench) -> None:
    """The folder for saved slots is full."""
    disk = bench.folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True)
    try:
        command = bench.command("--slot-save-path", str(disk))
        with serving(bench, "full_disk", command) as url:
            answers(
                f"{url}/completion", b'{"prompt": "one two three", "n_predict": 8, "id_slot": 0}'
            )
            answers(f"{url}/slots/0?action=save", b'{"filename": "slot.bin"}')
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@case
def context_exceeded(bench: Bench) -> None:
    """A prompt longer than the slot's context."""
    command = bench.command("-c", "512", "-np", "2")
    with serving(bench, "context_exceeded", command) as url:
        answers(f"{url}/completion", b'{"prompt": "' + b"word " * 700 + b'", "n_predict": 8}')


@case
def bad_template(bench: Bench) -> None:
    """A chat template that raises."""
    template = bench.folder / "template.jinja"
    template.write_text("{{ raise_exception('System message must be at the beginning.') }}")
    command = bench.command("--jinja", "--chat-template-file", str(template))
    with serving(bench, "bad_template", command) as url:
        answers(f"{url}/v1/chat/completions", b'{"messages": [{"role": "user", "content": "Hi"}]}')


@case
def missing_projector(bench: Bench) -> None:
    """A projector that is not there."""
    run(bench, "missing_projector", bench.command("--mmproj", str(bench.folder / "none.gguf")))


@case
def draft_of_another_vocabulary(bench: Bench) -> None:
    """A draft model that is the truncated file."""
    path = bench.folder / "draft.gguf"
    path.write_bytes(bench.model.read_bytes()[: 30 * MIB])
    run(bench, "draft_broken", bench.command("-md", str(path), "--spec-type", "draft-simple"))


@case
def unreachable_rpc(bench: Bench) -> None:
    """A worker machine that does not answer."""
    run(bench, "unreachable_rpc", bench.command("--rpc", f"127.0.0.1:{free_port()}"))


def main() -> None:
    """Run the cases named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("server", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []])
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            bench = Bench(args.server.resolve(), args.model.resolve(), args.out, Path(folder))
            try:
                CASES[name](bench)
            except (OSError, subprocess.SubprocessError) as error:
                print(f"{name}: not run: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()

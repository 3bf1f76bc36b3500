"""Weights on their way from node to node: real servers on addresses of loopback."""

import hashlib
import http.client
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import builders
from workhorse.errors import AppError
from workhorse.fleet import weights
from workhorse.fleet.spec import WeightsSource
from workhorse.fleet.weights import Fetch, fetch
from workhorse.fleet.weights_files import files_of, plan_with, shared_files, sources_of
from workhorse.fleet.weights_share import WeightsShare
from workhorse.models.pull_part import PIECE_BYTES
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish

KEY = "5e" * 32
CONTENT = random.Random(11).randbytes(3 * PIECE_BYTES + 5)
NAME = "big-Q8_0.gguf"
HEAD = "127.0.0.1"


class Fleet:
    """A head that shares a file, and nodes with addresses of their own."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home = home
        self.stack = stack
        self.file = home / "head" / NAME
        self.file.parent.mkdir()
        self.file.write_bytes(CONTENT)
        self.head = WeightsShare(KEY, head=True)
        self.head.start(HEAD, (0,))
        stack.callback(self.head.stop)
        self.sources = self.shared(self.file)
        self.said: dict[int, list[str]] = {}

    def shared(self, *files: Path) -> tuple[WeightsSource, ...]:
        hashed = shared_files(files, self.home / "hashes")
        self.head.add(hashed)
        return sources_of(hashed, self.head.url)

    def folder(self, node: int) -> Path:
        return self.home / f"node{node}"

    def node(self, node: int, progress: Callable[[int, int | None], None] | None = None) -> Fetch:
        """A node with a share of its own, which gives on what it has."""
        share = WeightsShare(KEY, folder=self.folder(node))
        share.start(f"127.0.0.{node}", (0,))
        self.stack.callback(share.stop)
        said = self.said.setdefault(node, [])
        return Fetch(
            KEY,
            f"node{node}",
            share,
            tell=lambda words: said.append(words.en),
            progress=progress or (lambda _done, _total: None),
            pause=lambda _s: None,
        )

    def sources_told(self, node: int) -> list[str]:
        """Where the node has fetched from, by address."""
        told = [line for line in self.said[node] if line.startswith("fetching ")]
        return [line.rpartition(" from ")[2].partition(":")[0] for line in told]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(tmp_path, stack)


def test_a_node_that_has_a_file_gives_it_on(fleet: Fleet) -> None:
    first = fetch(fleet.sources, fleet.folder(2), fleet.node(2))
    assert first.read_bytes() == CONTENT
    assert first.name == NAME
    second = fetch(fleet.sources, fleet.folder(3), fleet.node(3))
    assert second.read_bytes() == CONTENT
    assert fleet.sources_told(2) == ["127.0.0.1"]
    assert fleet.sources_told(3) == ["127.0.0.2"]


def test_what_is_here_costs_no_network_and_is_not_read_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = fleet.node(2)
    path = fetch(fleet.sources, fleet.folder(2), how)
    fleet.head.stop()
    monkeypatch.setattr(weights, "sha256_of", lambda path: pytest.fail(f"{path} is read again"))
    assert fetch(fleet.sources, fleet.folder(2), how) == path
    assert len(fleet.sources_told(2)) == 1


def test_without_the_key_nothing_is_given(fleet: Fleet) -> None:
    stranger = Fetch("00" * 32, "stranger", pause=lambda _s: None)
    with pytest.raises(AppError, match="401"):
        fetch(fleet.sources, fleet.folder(9), stranger)
    sha256 = fleet.sources[0].sha256
    for authorization in (None, KEY, f"Basic {KEY}", "Bearer ", "Bearer \udce9"):
        for method, path in (("GET", ""), ("POST", "/turn"), ("POST", "/have"), ("POST", "/kept")):
            assert ask(fleet.head, f"/weights/{sha256}{path}", authorization, method)[0] == 401


@pytest.mark.parametrize(
    "path",
    [
        "/weights/../hashes/pulled.json",
        "/weights/%2e%2e/%2e%2e/etc/passwd",
        "/weights//etc/passwd",
        "/weights/" + "0" * 64,
        "/weights/" + "A" * 64,
        "/weights/" + NAME,
        "/",
        "/weights/",
    ],
)
def test_nothing_but_shared_files_can_be_read(fleet: Fleet, path: str) -> None:
    fetch(fleet.sources, fleet.folder(2), how := fleet.node(2))
    assert how.share is not None
    for share in (fleet.head, how.share):
        assert ask(share, path, f"Bearer {KEY}")[0] == 404


def test_a_file_that_changed_is_not_given(fleet: Fleet) -> None:
    fleet.file.write_bytes(CONTENT[::-1])
    os.utime(fleet.file, ns=(0, 0))
    assert ask(fleet.head, f"/weights/{fleet.sources[0].sha256}", f"Bearer {KEY}")[0] == 404
    with pytest.raises(AppError, match="404"):
        fetch(fleet.sources, fleet.folder(2), fleet.node(2))


def test_a_packed_file_beside_it_is_not_given_instead(fleet: Fleet) -> None:
    fleet.file.with_name(NAME + ".gz").write_bytes(b"not shared")
    path = f"/weights/{fleet.sources[0].sha256}"
    assert ask(fleet.head, path, f"Bearer {KEY}", encoding="gzip")[0] == 406
    assert ask(fleet.head, path, f"Bearer {KEY}", encoding="identity") == (200, CONTENT)


def test_stretches(fleet: Fleet) -> None:
    path = f"/weights/{fleet.sources[0].sha256}"
    assert ask(fleet.head, path, f"Bearer {KEY}", stretch="bytes=5-9") == (206, CONTENT[5:10])
    assert ask(fleet.head, path, f"Bearer {KEY}", stretch=f"bytes={len(CONTENT)}-")[0] == 416


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"port": "x"}', b'{"node": "%s"}' % (b"n" * 200)]
)
def test_strange_questions_are_refused(fleet: Fleet, body: bytes) -> None:
    path = f"/weights/{fleet.sources[0].sha256}/turn"
    assert ask(fleet.head, path, f"Bearer {KEY}", "POST", body)[0] == 400
    assert ask(fleet.head, path, f"Bearer {KEY}", "POST", b" " * 5000)[0] == 413


def test_a_cut_link_to_a_node_ends_at_another_with_what_came(fleet: Fleet) -> None:
    giver = fleet.node(2)
    fetch(fleet.sources, fleet.folder(2), giver)
    steps: list[int] = []

    def cut(done_bytes: int, _: int | None) -> None:
        steps.append(done_bytes)
        if done_bytes >= PIECE_BYTES and giver.share is not None:
            giver.share.stop()

    path = fetch(fleet.sources, fleet.folder(3), fleet.node(3, cut))
    assert path.read_bytes() == CONTENT
    assert fleet.sources_told(3)[0] == "127.0.0.2"
    assert steps == sorted(steps), "no byte is fetched twice"
    if len(fleet.sources_told(3)) > 1:  # else all of it was on the way before the cut
        assert fleet.sources_told(3)[1] == "127.0.0.1"
        assert any("did not give it" in line for line in fleet.said[3])


def test_a_node_that_is_gone_is_dropped(fleet: Fleet) -> None:
    giver = fleet.node(2)
    fetch(fleet.sources, fleet.folder(2), giver)
    assert giver.share is not None
    giver.share.stop()
    assert fetch(fleet.sources, fleet.folder(3), fleet.node(3)).read_bytes() == CONTENT
    assert fleet.sources_told(3) == ["127.0.0.2", "127.0.0.1"]
    assert fetch(fleet.sources, fleet.folder(4), fleet.node(4)).read_bytes() == CONTENT
    assert fleet.sources_told(4) == ["127.0.0.3"]


def test_wrong_bytes_of_a_node_are_thrown_away(fleet: Fleet) -> None:
    giver = fleet.node(2)
    path = fetch(fleet.sources, fleet.folder(2), giver)
    stamp = path.stat()
    path.write_bytes(CONTENT[::-1])  # a disk that turned bits, and a time stamp that says nothing
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert fetch(fleet.sources, fleet.folder(3), fleet.node(3)).read_bytes() == CONTENT
    assert fleet.sources_told(3) == ["127.0.0.2", "127.0.0.1"]


def test_a_head_whose_file_is_another_is_told(fleet: Fleet) -> None:
    stamp = fleet.file.stat()
    fleet.file.write_bytes(CONTENT[::-1])
    os.utime(fleet.file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with pytest.raises(AppError, match=r"127\.0\.0\.1.* is not the file that was ordered"):
        fetch(fleet.sources, fleet.folder(2), fleet.node(2))
    assert not list(fleet.folder(2).rglob(NAME))


def test_when_the_head_is_gone(fleet: Fleet) -> None:
    fleet.head.stop()
    with pytest.raises(AppError, match="tries brought nothing more"):
        fetch(fleet.sources, fleet.folder(2), fleet.node(2))


def test_all_who_have_it_are_busy(fleet: Fleet) -> None:
    body = '{{"node": "{}"}}'
    path = f"/weights/{fleet.sources[0].sha256}"
    for name in ("a", "b"):
        asked = body.format(name).encode()
        assert ask(fleet.head, f"{path}/turn", f"Bearer {KEY}", "POST", asked)[0] == 200
    how, pauses = fleet.node(2), list[float]()

    def pause(wait_s: float) -> None:
        pauses.append(wait_s)
        ask(fleet.head, f"{path}/have", f"Bearer {KEY}", "POST", body.format("a").encode())

    waiting = Fetch(KEY, "node2", how.share, how.tell, pause=pause)
    assert fetch(fleet.sources, fleet.folder(2), waiting).read_bytes() == CONTENT
    assert len(pauses) == 1
    assert "all nodes that have it" in fleet.said[2][0]


def test_a_full_disk_is_told_before_the_first_byte(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _path: usage(10**9, 10**9, 1000))
        with pytest.raises(AppError, match=r"has 1000 B left, 12\.0 MiB more are needed"):
            fetch(fleet.sources, fleet.folder(2), fleet.node(2))
    assert fleet.sources_told(2) == []
    assert fetch(fleet.sources, fleet.folder(2), fleet.node(2)).read_bytes() == CONTENT


def test_a_node_that_was_killed_goes_on_where_it_was(fleet: Fleet) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from workhorse.fleet.spec import WeightsSource\n"
        "from workhorse.fleet.weights import Fetch, fetch\n"
        "def step(done, total):\n"
        "    if done >= int(sys.argv[4]): print('here', flush=True); sys.stdin.read()\n"
        "source = WeightsSource(sys.argv[2], sys.argv[3], int(sys.argv[5]), (sys.argv[6],))\n"
        "fetch([source], Path(sys.argv[1]), Fetch(sys.argv[7], 'node', progress=step))\n"
    )
    one = fleet.sources[0]
    words = [str(fleet.folder(2)), NAME, one.sha256, str(PIECE_BYTES), str(one.n_bytes)]
    child = subprocess.Popen(
        [sys.executable, "-c", script, *words, one.urls[0], KEY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"here\n"
    # Meanwhile another process of the node waits, and does not fetch beside it.
    waits, steps = threading.Event(), list[int]()
    how = fleet.node(2, lambda done, _: steps.append(done))
    heard = Fetch(KEY, "node2", how.share, lambda words: waits.set(), how.progress, how.pause)
    found: list[Path] = []
    other = threading.Thread(
        target=lambda: found.append(fetch(fleet.sources, fleet.folder(2), heard))
    )
    other.start()
    assert waits.wait(300)
    assert steps == []
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdin.close()
    child.stdout.close()
    other.join()
    assert found[0].read_bytes() == CONTENT
    assert steps[0] >= PIECE_BYTES, "what had come was kept"


def test_a_split_model_lies_together(fleet: Fleet) -> None:
    parts = [fleet.home / "head" / f"m-{part:05d}-of-00003.gguf" for part in (1, 2, 3)]
    for number, part in enumerate(parts):
        part.write_bytes(bytes([number]) * 1000)
    plan = make_plan(builders.machine(), builders.model(), builders.EMBEDDED, Wish())
    plan = plan_with(plan, parts[0])
    sources = fleet.shared(*files_of(plan))
    assert len(sources) == 3
    first = fetch(sources, fleet.folder(2), fleet.node(2))
    assert first.name == parts[0].name
    for part in parts:
        assert first.with_name(part.name).read_bytes() == part.read_bytes()
    assert plan_with(plan, first).model_path == str(first)
    parts[1].unlink()
    with pytest.raises(AppError, match=r"m-00002-of-00003\.gguf is not there"):
        files_of(plan)


def test_a_checkpoint_is_a_folder(fleet: Fleet) -> None:
    folder = fleet.home / "checkpoint"
    folder.mkdir()
    for name in ("model.safetensors", "config.json", "tokenizer.json", "modeling.py", ".hidden"):
        (folder / name).write_text(name)
    plan = plan_with(
        make_plan(builders.machine(), builders.model(), builders.EMBEDDED, Wish()), folder
    )
    found = fetch(fleet.shared(*files_of(plan)), fleet.folder(2), fleet.node(2))
    assert found.is_dir()
    names = {path.name for path in found.iterdir()} - {"pulled.json"}
    assert names == {"model.safetensors", "config.json", "tokenizer.json"}, "no code"


@pytest.mark.parametrize(
    "name", ["", "../x.gguf", "/etc/x.gguf", ".x", "a/b", "a\0b", "pulled.json", "n" * 300]
)
def test_no_list_of_weights_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    source = WeightsSource(name, "ab" * 32, 5, ("http://127.0.0.1:1/x",))
    with pytest.raises(AppError, match="has a file that no node takes"):
        fetch([source], tmp_path / "weights", Fetch(KEY))
    assert not list(tmp_path.iterdir())


def test_hashes_are_kept_until_the_file_changes(tmp_path: Path) -> None:
    file, known = tmp_path / "m.gguf", tmp_path / "known"
    file.write_bytes(b"one")
    counted: list[int] = []

    def hashed() -> str:
        return shared_files([file], known, lambda done, _: counted.append(done))[0].sha256

    assert hashed() == hashlib.sha256(b"one").hexdigest()
    assert hashed() == hashlib.sha256(b"one").hexdigest()
    assert counted == [3]
    file.write_bytes(b"three")
    assert hashed() == hashlib.sha256(b"three").hexdigest()


def ask(
    share: WeightsShare,
    path: str,
    authorization: str | None,
    method: str = "GET",
    body: bytes = b"{}",
    *,
    encoding: str | None = None,
    stretch: str | None = None,
) -> tuple[int, bytes]:
    """Status and body of a request as it is written here, without a client's corrections."""
    link = http.client.HTTPConnection(share.host or "", share.port, timeout=60)
    link.putrequest(method, path, skip_accept_encoding=True)
    for name, value in (
        ("Authorization", authorization),
        ("Accept-Encoding", encoding),
        ("Range", stretch),
        ("Content-Length", str(len(body)) if method == "POST" else None),
    ):
        if value is not None:
            link.putheader(name, value.encode("utf-8", "surrogateescape"))
    link.endheaders(body if method == "POST" else None)
    answer = link.getresponse()
    found = answer.status, answer.read()
    link.close()
    return found

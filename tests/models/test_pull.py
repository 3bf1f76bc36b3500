"""Pulls from hubs and addresses: the right files, whole, checked, and never twice."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from checkpoint_builder import checkpoint
from file_server import FileServer, file_server
from gguf_builder import llama
from hub_server import move_to, publish_hf, publish_ms
from pulling import CONTENT, NAME, OTHER, REPO, left_in, pull_to

from workhorse.errors import AppError
from workhorse.models.pull_record import (
    RECORD,
    PulledFile,
    find_in,
    find_pulled,
    folder_of,
    note_files,
    read_record,
)
from workhorse.models.read import local_checkpoint, read_model
from workhorse.models.sources import source_of


def ranges(server: FileServer) -> list[str]:
    """The stretches that were asked for, the first look left out."""
    asked = [headers.get("range", "") for _, headers in server.requests]
    return [one for one in asked if one and one != "bytes=0-0"]


def test_a_file_by_several_connections(server: FileServer, tmp_path: Path) -> None:
    environment = publish_hf(server, REPO, {NAME: CONTENT})
    pulled = pull_to(tmp_path, f"hf:{REPO}", environment, connections=4)
    assert pulled.path.read_bytes() == CONTENT
    assert not pulled.unchecked
    assert len(ranges(server)) == 4
    assert left_in(tmp_path) == {NAME, RECORD}, "nothing else is left behind"


def test_a_second_pull_costs_no_bytes(server: FileServer, tmp_path: Path) -> None:
    environment = publish_hf(server, REPO, {NAME: CONTENT})
    pull_to(tmp_path, f"hf:{REPO}", environment)
    sent_bytes = server.sent_bytes
    assert pull_to(tmp_path, f"hf:{REPO}", environment).fetched_bytes == 0
    (tmp_path / RECORD).write_text("{damaged")
    assert pull_to(tmp_path, f"hf:{REPO}", environment).fetched_bytes == 0, "its hash says so"
    assert server.sent_bytes - sent_bytes < 4096, "two listings"
    server.files[f"/{REPO}/resolve/main/{NAME}"] = OTHER
    publish_hf(server, REPO, {NAME: OTHER})
    assert pull_to(tmp_path, f"hf:{REPO}", environment).path.read_bytes() == OTHER


def test_a_plain_address_is_asked_whether_it_changed(server: FileServer, tmp_path: Path) -> None:
    server.files["/m.gguf"] = CONTENT
    pulled = pull_to(tmp_path, server.url("/m.gguf"))
    assert pulled.path.read_bytes() == CONTENT
    assert pulled.unchecked == ("m.gguf",)
    assert pull_to(tmp_path, server.url("/m.gguf")).fetched_bytes == 0
    server.etag, server.files["/m.gguf"] = '"v2"', OTHER
    assert pull_to(tmp_path, server.url("/m.gguf")).path.read_bytes() == OTHER


def test_a_token_stays_with_the_hub(server: FileServer, tmp_path: Path) -> None:
    environment = {**publish_hf(server, REPO, {NAME: CONTENT}), "HF_TOKEN": "hf_secret"}
    with file_server() as cdn:
        move_to(cdn, server, f"/{REPO}/resolve/")
        assert pull_to(tmp_path, REPO, environment, connections=3).path.read_bytes() == CONTENT
        asked = [headers for path, headers in server.requests if "/resolve/" in path]
        assert all(headers["authorization"] == "Bearer hf_secret" for headers in asked)
        assert cdn.requests and not any("authorization" in h for _, h in cdn.requests)
        assert len(asked) == 1, "the redirect is followed once"


def test_a_signed_address_that_ended_is_signed_again(server: FileServer, tmp_path: Path) -> None:
    environment = publish_hf(server, REPO, {NAME: CONTENT})
    path = f"/{REPO}/resolve/main/{NAME}"
    with file_server() as cdn:
        move_to(cdn, server, f"/{REPO}/resolve/")

        def ended(answer: object) -> None:
            cdn.refusals[path] = (403, {})
            server.redirects[path] = cdn.url("/again")
            cdn.files["/again"] = CONTENT
            answer.status(403)  # type: ignore[attr-defined]

        cdn.script = [lambda answer: answer.whole(), ended]
        assert pull_to(tmp_path, REPO, environment).path.read_bytes() == CONTENT


def test_modelscope_through_either_door(server: FileServer, tmp_path: Path) -> None:
    environment = publish_ms(server, REPO, {NAME: CONTENT})
    pulled = pull_to(tmp_path / "a", f"ms:{REPO}", environment)
    assert pulled.path.read_bytes() == CONTENT and not pulled.unchecked
    server.files[f"/api/v1/models/{REPO}/repo?Revision=master&FilePath={NAME}"] = server.files.pop(
        f"/models/{REPO}/resolve/master/{NAME}"
    )
    assert pull_to(tmp_path / "b", f"ms:{REPO}", environment).path.read_bytes() == CONTENT


def test_a_checkpoint_is_a_folder(server: FileServer, tmp_path: Path) -> None:
    files = checkpoint(shards=3)
    files |= {"tokenizer.json": b"{}", "tokenizer_config.json": b"{}", "LICENSE": b"free"}
    others = {"modeling_evil.py": b"boom", "pytorch_model.bin": b"pickle", "onnx/model.json": b"x"}
    environment = publish_hf(server, REPO, {**files, **others})
    pulled = pull_to(tmp_path, f"hf:{REPO}", environment, file=None)
    assert left_in(tmp_path) == {*files, RECORD}
    assert pulled.path == tmp_path and not pulled.unchecked, "small ones by git's hash"
    assert local_checkpoint(tmp_path) == tmp_path
    assert read_model(tmp_path).tensors
    assert find_in(tmp_path, f"hf:{REPO}", None) == tmp_path


def test_a_split_model_is_whole(server: FileServer, tmp_path: Path) -> None:
    files = {f"big/m-0000{part}-of-00003.gguf": bytes([part]) * 99 for part in (1, 2, 3)}
    environment = publish_hf(server, REPO, files)
    first = "big/m-00001-of-00003.gguf"
    pulled = pull_to(tmp_path, f"hf:{REPO}", environment, file=first)
    assert pulled.path == tmp_path / first
    assert left_in(tmp_path) == {*files, RECORD}
    assert find_in(tmp_path, f"hf:{REPO}", None) == tmp_path / first
    (tmp_path / "big/m-00002-of-00003.gguf").unlink()
    assert find_in(tmp_path, f"hf:{REPO}", None) is None, "a part is missing"
    del files["big/m-00003-of-00003.gguf"]
    with pytest.raises(AppError, match=r"has no file big/m-00003-of-00003\.gguf"):
        pull_to(tmp_path / "b", f"hf:{REPO}", publish_hf(server, REPO, files), file=first)


def test_a_file_of_the_user_is_not_replaced(server: FileServer, tmp_path: Path) -> None:
    environment = publish_hf(server, REPO, {NAME: CONTENT})
    (tmp_path / NAME).write_bytes(b"mine")
    with pytest.raises(AppError, match=r"is there already.*--to"):
        pull_to(tmp_path, f"hf:{REPO}", environment)
    assert (tmp_path / NAME).read_bytes() == b"mine"
    (tmp_path / NAME).write_bytes(CONTENT)
    assert pull_to(tmp_path, f"hf:{REPO}", environment).fetched_bytes == 0, "it is the very file"


def test_two_repositories_in_one_folder(server: FileServer, tmp_path: Path) -> None:
    environment = publish_hf(server, REPO, {NAME: CONTENT})
    publish_hf(server, "other/Model", {NAME: OTHER, "b-Q4_0.gguf": b"b"})
    pull_to(tmp_path, REPO, environment)
    with pytest.raises(AppError, match="is there already"):
        pull_to(tmp_path, "other/Model", environment)
    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert find_in(tmp_path, "hf:other/Model", None) is None
    pull_to(tmp_path, "other/Model", environment, file="b-Q4_0.gguf")
    assert find_in(tmp_path, "hf:other/Model", None) == tmp_path / "b-Q4_0.gguf"
    assert find_in(tmp_path, f"hf:{REPO}", None) == tmp_path / NAME


def test_records_of_several_processes_add_up(tmp_path: Path) -> None:
    def note(number: int) -> None:
        file = PulledFile("hf:a/b", number, 0)
        note_files(tmp_path, {f"{number}.gguf": file}, f"{number}.gguf")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(note, range(12)))
    record = read_record(tmp_path)
    assert len(record.files) == len(record.models) == 12
    assert left_in(tmp_path) == {RECORD}


def test_a_gated_model_says_what_to_do(server: FileServer, tmp_path: Path) -> None:
    environment = publish_hf(server, REPO, {NAME: CONTENT})
    path = f"/{REPO}/resolve/main/{NAME}"
    server.refusals[path] = (401, {"X-Error-Code": "GatedRepo"})
    with pytest.raises(AppError, match=r"is gated.*Accept them at .*HF_TOKEN"):
        pull_to(tmp_path, f"hf:{REPO}", environment)
    with pytest.raises(AppError, match="the account of HF_TOKEN has no access"):
        pull_to(tmp_path, f"hf:{REPO}", {**environment, "HF_TOKEN": "hf_x"})
    assert left_in(tmp_path) == set()


def test_an_empty_file(server: FileServer, tmp_path: Path) -> None:
    environment = publish_hf(server, REPO, {**checkpoint(), "added_tokens.json": b""})
    pull_to(tmp_path, f"hf:{REPO}", environment, file=None)
    assert (tmp_path / "added_tokens.json").read_bytes() == b""
    server.files["/empty.gguf"] = b""
    assert pull_to(tmp_path / "b", server.url("/empty.gguf")).path.read_bytes() == b""


def test_what_was_pulled_is_found_by_its_name(server: FileServer, tmp_path: Path) -> None:
    names = ("m-Q4_K_M.gguf", "m-Q8_0.gguf")
    environment = publish_hf(server, REPO, dict.fromkeys(names, llama().build()))
    folder = folder_of(source_of(REPO, environment), tmp_path)
    assert find_pulled(f"hf:{REPO}", None, tmp_path, environment) is None
    pull_to(folder, REPO, environment, file="m-Q8_0.gguf")
    for quant in (None, "Q8_0"):
        assert find_pulled(REPO, quant, tmp_path, environment) == folder / "m-Q8_0.gguf"
    assert find_pulled(f"{REPO}:m-Q8_0.gguf", None, tmp_path, environment) is not None
    assert find_pulled(f"{REPO}:Q4_K_M", None, tmp_path, environment) is None
    assert find_pulled(f"{REPO}@dev:Q8_0", None, tmp_path, environment) is None
    pull_to(folder, REPO, environment, file="m-Q4_K_M.gguf")
    assert find_pulled(REPO, "Q4_K_M", tmp_path, environment) == folder / "m-Q4_K_M.gguf"
    (folder / "m-Q8_0.gguf").write_bytes(b"touched")
    assert find_pulled(f"{REPO}:Q8_0", None, tmp_path, environment) is None


@pytest.mark.parametrize(
    "record",
    [
        b"[]",
        b"{" * 10_000,
        b'{"models": {"../../etc/passwd": ["../../etc/passwd"]}, "files": {}}',
        b'{"models": {"/etc/passwd": []}, "files": {}}',
        b'{"files": {"a": {"source": "hf:a/b", "size_bytes": -1, "changed_ns": 0}}}',
        b'{"models": {"x.gguf": ["x.gguf"]}}',
    ],
)
def test_hostile_records_lead_nowhere(tmp_path: Path, record: bytes) -> None:
    (tmp_path / RECORD).write_bytes(record)
    read_record(tmp_path)
    for wanted in (None, "Q4_0", "../../etc/passwd", "/etc/passwd", "config.json"):
        assert find_in(tmp_path, "hf:a/b", wanted) is None


@pytest.mark.parametrize("name", ["../m.gguf", "/tmp/m.gguf", "a/../../m.gguf", "a//m.gguf"])
def test_a_hub_cannot_write_elsewhere(server: FileServer, tmp_path: Path, name: str) -> None:
    environment = publish_hf(server, REPO, {name: b"evil"})
    with pytest.raises(AppError, match="has no file"):
        pull_to(tmp_path / "in", REPO, environment, file=name)
    assert left_in(tmp_path) == set()

"""Models read from hubs, mirrors and addresses: few requests, never the whole file."""

import json
from pathlib import Path

import pytest
from file_server import (
    Answer,
    FileServer,
    answers,
    file_server,
)
from gguf_builder import I32, STR, U16, Gguf, llama
from hub_reading import REPO, TINY, large_vocabulary, read, refusal
from hub_server import move_to, publish_hf, publish_ms

from workhorse.models.gguf import read_gguf
from workhorse.models.read import read_model
from workhorse.models.sources import HubSource, LocalSource, UrlSource, source_of
from workhorse.units import MIB

# ---------------------------------------------------------------- names


ENDPOINTS = {"HF_ENDPOINT": "http://mirror:8000/", "MODELSCOPE_DOMAIN": "ms.example"}


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("hf:a/b", HubSource("hf", "http://mirror:8000", "a/b", "main")),
        ("a/b", HubSource("hf", "http://mirror:8000", "a/b", "main")),
        (
            "hf:a/b.c-1:x/y.gguf",
            HubSource("hf", "http://mirror:8000", "a/b.c-1", "main", "x/y.gguf"),
        ),
        ("a/b:Q4_K_M", HubSource("hf", "http://mirror:8000", "a/b", "main", "Q4_K_M")),
        ("hf:a/b@v1:f.gguf", HubSource("hf", "http://mirror:8000", "a/b", "v1", "f.gguf")),
        ("ms:a/b", HubSource("ms", "https://ms.example", "a/b", "master")),
        ("https://huggingface.co/a/b", HubSource("hf", "http://mirror:8000", "a/b", "main")),
        (
            "https://huggingface.co/a/b/blob/main/x%20y.gguf?download=true",
            HubSource("hf", "http://mirror:8000", "a/b", "main", "x y.gguf"),
        ),
        (
            "https://hf-mirror.com/a/b/tree/dev",
            HubSource("hf", "https://hf-mirror.com", "a/b", "dev"),
        ),
        (
            "https://www.modelscope.cn/models/a/b/summary",
            HubSource("ms", "https://ms.example", "a/b", "master"),
        ),
        (
            "https://modelscope.cn/models/a/b/file/view/master/c.gguf",
            HubSource("ms", "https://ms.example", "a/b", "master", "c.gguf"),
        ),
        ("https://example.org/x/y.gguf", UrlSource("https://example.org/x/y.gguf")),
        ("https://huggingface.co/docs", UrlSource("https://huggingface.co/docs")),
        ("file:///a/b%20c.gguf", LocalSource(Path("/a/b c.gguf"))),
        ("./a/b", LocalSource(Path("a/b"))),
        ("models/x.gguf", LocalSource(Path("models/x.gguf"))),
        ("x.gguf", LocalSource(Path("x.gguf"))),
    ],
)
def test_what_a_reference_names(reference: str, expected: object) -> None:
    assert source_of(reference, ENDPOINTS) == expected


def test_a_directory_that_is_there_comes_before_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "maker").mkdir()
    (tmp_path / "maker" / "tiny").mkdir()
    llama().write(tmp_path / "maker" / "tiny" / "m.gguf")
    assert read("maker/tiny").name == "Tiny"


@pytest.mark.parametrize(
    "name", ["hf:a", "hf:", "ms:a/b/c", "hf:a/b:../../x.gguf", "hf:a/b:/etc/x"]
)
def test_a_reference_that_is_none(name: str) -> None:
    assert "names no model" in refusal(name)


# ---------------------------------------------------------------- GGUF on a hub


def test_a_file_on_hugging_face(server: FileServer, tmp_path: Path) -> None:
    environment = publish_hf(server, REPO, {"tiny.Q4_0.gguf": TINY})
    model = read(f"hf:{REPO}:tiny.Q4_0.gguf", environment)
    local = tmp_path / "tiny.Q4_0.gguf"
    local.write_bytes(TINY)
    expected = read_gguf(local)
    assert model.path == f"hf:{REPO}:tiny.Q4_0.gguf"
    assert model.tensors == expected.tensors
    assert (model.file_bytes, model.attention) == (expected.file_bytes, expected.attention)
    assert len(server.requests) == 1, "the file alone, no listing"


def test_the_only_model_of_a_repository_needs_no_name(server: FileServer) -> None:
    files = {"README.md": b"#", "mmproj-tiny-f16.gguf": b"GGUF", "tiny.gguf": TINY}
    assert read(REPO, publish_hf(server, REPO, files)).path == f"hf:{REPO}:tiny.gguf"


def test_a_mirror_that_lists_only_names(server: FileServer) -> None:
    environment = publish_hf(server, REPO, {"tiny.gguf": TINY})
    del server.files[f"/api/models/{REPO}/tree/main?recursive=true"]
    siblings = json.dumps({"id": REPO, "siblings": [{"rfilename": "tiny.gguf"}]}).encode()
    server.files[f"/api/models/{REPO}/revision/main"] = siblings
    assert read(REPO, environment).name == "Tiny"


@pytest.mark.parametrize(
    ("wanted", "quant", "expected"),
    [
        ("", None, "tiny-Q4_K_M.gguf"),
        (":Q8_0", None, "tiny-Q8_0.gguf"),
        (":q8_0", None, "tiny-Q8_0.gguf"),
        ("", "Q8_0", "tiny-Q8_0.gguf"),
        (":UD-Q2_K_XL", None, "big/tiny-UD-Q2_K_XL.gguf"),
        (":Q2_K_XL", None, "big/tiny-UD-Q2_K_XL.gguf"),
    ],
)
def test_a_quantisation_chooses_the_file(
    server: FileServer, wanted: str, quant: str | None, expected: str
) -> None:
    names = ("tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf", "big/tiny-UD-Q2_K_XL.gguf")
    environment = publish_hf(server, REPO, dict.fromkeys(names, TINY))
    assert read(f"hf:{REPO}{wanted}", environment, quant=quant).path == f"hf:{REPO}:{expected}"


def test_a_quantisation_that_is_not_there_lists_those_that_are(server: FileServer) -> None:
    environment = publish_hf(server, REPO, {"tiny-Q8_0.gguf": TINY, "tiny-Q6_K.gguf": TINY})
    said = refusal(f"hf:{REPO}:Q2_K", environment)
    assert "has no Q2_K" in said and "tiny-Q8_0.gguf" in said and "tiny-Q6_K.gguf" in said


def test_files_beside_a_model_are_not_it(server: FileServer) -> None:
    names = ("a-MTP-Q4_K_M.gguf", "mtp-a-Q4_K_M.gguf", "a-Q4_K_M-mmproj.gguf", "imatrix-a.gguf")
    environment = publish_hf(server, REPO, dict.fromkeys(names, TINY))
    assert read(REPO, environment).path == f"hf:{REPO}:a-MTP-Q4_K_M.gguf"


def test_a_quantisation_is_a_whole_word(server: FileServer) -> None:
    environment = publish_hf(
        server, REPO, dict.fromkeys(("a-Q4_0_4_4.gguf", "a-Q4_0-v2.gguf"), TINY)
    )
    assert read(f"{REPO}:Q4_0", environment).path == f"hf:{REPO}:a-Q4_0-v2.gguf"
    assert "has no Q4_K" in refusal(f"{REPO}:Q4_K", environment)


def test_several_models_of_which_none_is_usual(server: FileServer) -> None:
    environment = publish_hf(server, REPO, {"one.gguf": TINY, "two.gguf": TINY})
    assert "has 2 models: one.gguf" in refusal(REPO, environment)


def test_a_file_that_is_not_there_names_near_ones(server: FileServer) -> None:
    environment = publish_hf(server, REPO, {"tiny.Q4_0.gguf": TINY, "other.txt": b""})
    said = refusal(f"hf:{REPO}:tiny-Q4_0.gguf", environment)
    assert "has no file tiny-Q4_0.gguf" in said and "Near to it: tiny.Q4_0.gguf" in said


def test_modelscope(server: FileServer) -> None:
    environment = publish_ms(server, REPO, {"sub/tiny.gguf": TINY, "README.md": b"#"})
    assert read(f"ms:{REPO}", environment).path == f"ms:{REPO}:sub/tiny.gguf"
    page = f"{environment['MODELSCOPE_ENDPOINT']}/models/{REPO}/summary"
    assert read(page, environment).path == f"ms:{REPO}:sub/tiny.gguf"


def test_a_modelscope_that_has_only_the_door_of_its_own_client(server: FileServer) -> None:
    environment = publish_ms(server, REPO, {"sub/tiny.gguf": TINY})
    server.files[f"/api/v1/models/{REPO}/repo?Revision=master&FilePath=sub%2Ftiny.gguf"] = (
        server.files.pop(f"/models/{REPO}/resolve/master/sub/tiny.gguf")
    )
    assert read(f"ms:{REPO}", environment).path == f"ms:{REPO}:sub/tiny.gguf"
    assert "Near to it: sub/tiny.gguf" in refusal(f"ms:{REPO}:sub/tini.gguf", environment)


def test_a_plain_address_with_a_signature(server: FileServer) -> None:
    server.files["/x/tiny.gguf?sig=secret"] = TINY
    model = read(server.url("/x/tiny.gguf?sig=secret"))
    assert model.name == "Tiny"
    assert model.path == server.url("/x/tiny.gguf"), "what signs it is nobody else's business"


def test_an_address_in_chinese(server: FileServer) -> None:
    server.files["/%E6%A8%A1%E5%9E%8B/a%20b.gguf"] = TINY
    assert read(server.url("/模型/a b.gguf")).name == "Tiny"
    assert read(server.url("/%E6%A8%A1%E5%9E%8B/a%20b.gguf")).name == "Tiny"


def test_an_address_with_a_password(server: FileServer) -> None:
    server.password = "me:p@ss"
    server.files["/tiny.gguf"] = TINY
    address = server.url("/tiny.gguf").replace("//", "//me:p%40ss@")
    assert read(address).path == server.url("/tiny.gguf")
    said = refusal(address.replace("p%40ss", "wrong"))
    assert "wants a login" in said and "wrong" not in said


def test_a_token_that_is_none_is_not_printed(server: FileServer) -> None:
    environment = publish_hf(server, REPO, {"tiny.gguf": TINY})
    said = refusal(REPO, {**environment, "HF_TOKEN": "hf_sec\nret"})
    assert "HF_TOKEN is no token" in said and "sec" not in said


def test_a_file_has_its_own_quantisation(server: FileServer, tmp_path: Path) -> None:
    environment = publish_hf(server, REPO, {"tiny.gguf": TINY})
    assert "has its quantisation" in refusal(f"hf:{REPO}:tiny.gguf", environment, quant="Q8_0")
    local = tmp_path / "tiny.gguf"
    local.write_bytes(TINY)
    assert "has its quantisation" in refusal(str(local), quant="Q8_0")


def split_model(parts: int = 3) -> dict[str, bytes]:
    """A model in several files, each layer in its own."""
    files = {}
    for part in range(parts):
        if part == 0:
            file = llama(layers=parts)
            every = file.tensors
            file.tensors = every[:1]
        else:
            file = Gguf().key("general.architecture", STR, "llama")
        per = (len(every) - 1) // parts
        file.tensors = file.tensors[:1] if part == 0 else []
        file.tensors += every[1 + part * per : 1 + (part + 1) * per]
        file.key("split.no", U16, part).key("split.count", U16, parts)
        file.key("split.tensors.count", I32, len(every))
        files[f"big/tiny-{part + 1:05d}-of-{parts:05d}.gguf"] = file.build()
    return files


def test_all_parts_of_a_split_model(server: FileServer) -> None:
    files = split_model()
    environment = publish_hf(server, REPO, files)
    whole = read(REPO, environment)
    assert whole.path == f"hf:{REPO}:big/tiny-00001-of-00003.gguf"
    assert whole.file_bytes == sum(map(len, files.values()))
    assert len(whole.tensors) == 7
    server.files["/plain/tiny-00001-of-00003.gguf"] = next(iter(files.values()))
    for name, content in files.items():
        server.files[f"/plain/{name.partition('/')[2]}"] = content
    address = server.url("/plain/tiny-00002-of-00003.gguf")
    assert read(address).tensors == whole.tensors, "any part leads to the others"


def test_a_part_that_is_missing(server: FileServer) -> None:
    files = split_model()
    del files["big/tiny-00002-of-00003.gguf"]
    said = refusal(REPO, publish_hf(server, REPO, files))
    assert "has no file big/tiny-00002-of-00003.gguf" in said


def test_a_large_vocabulary_costs_few_requests_and_no_weights(server: FileServer) -> None:
    raw = large_vocabulary()
    environment = publish_hf(server, REPO, {"big.gguf": raw})
    model = read(f"hf:{REPO}:big.gguf", environment)
    assert model.vocabulary == 150_000 and len(raw) > 100_000_000
    assert len(server.requests) <= 4
    assert server.sent_bytes < 17 * MIB


def test_later_pieces_go_where_the_first_was_found(server: FileServer) -> None:
    raw = large_vocabulary()
    environment = publish_hf(server, REPO, {"big.gguf": raw})
    with file_server() as cdn:
        move_to(cdn, server, f"/{REPO}/resolve/")
        assert read(f"hf:{REPO}:big.gguf", {**environment, "HF_TOKEN": "hf_secret"}).name == "Tiny"
        assert len(server.requests) == 1 and len(cdn.requests) >= 2
        assert server.requests[0][1]["authorization"] == "Bearer hf_secret"
        assert all("authorization" not in headers for _, headers in cdn.requests)


def test_a_signed_address_that_ends_is_asked_for_again(server: FileServer) -> None:
    raw = large_vocabulary()
    environment = publish_hf(server, REPO, {"big.gguf": raw})
    with file_server() as cdn:
        move_to(cdn, server, f"/{REPO}/resolve/")
        cdn.script = [Answer.whole, answers(403)]
        assert read(f"hf:{REPO}:big.gguf", environment).name == "Tiny"
        assert len(server.requests) == 2


# ---------------------------------------------------------------- refusals of a hub


GATED = (401, {"X-Error-Code": "GatedRepo"})


@pytest.mark.parametrize(
    ("answer", "token", "expected"),
    [
        (GATED, None, "is gated: its publisher wants its terms accepted"),
        ((403, {"X-Error-Code": "GatedRepo"}), "t", "the account of HF_TOKEN has no access"),
        ((401, {}), None, "gated or private, or there is no such model"),
        ((403, {}), None, "HF_TOKEN"),
        ((404, {"X-Error-Code": "RevisionNotFound"}), None, "has no revision main"),
        ((404, {"X-Error-Code": "RepoNotFound"}), None, f"has no model {REPO}"),
        ((418, {}), None, "HTTP 418"),
    ],
)
def test_what_a_hub_refuses(
    server: FileServer, answer: tuple[int, dict[str, str]], token: str | None, expected: str
) -> None:
    environment = publish_hf(server, REPO, {"tiny.gguf": TINY})
    server.refusals[f"/{REPO}/resolve/main/tiny.gguf"] = answer
    if token:
        environment["HF_TOKEN"] = token
    assert expected in refusal(f"hf:{REPO}:tiny.gguf", environment)


def test_a_repository_that_is_not_there(server: FileServer) -> None:
    assert "has no model no/such" in refusal("no/such", {"HF_ENDPOINT": server.url("")})
    environment = {"MODELSCOPE_ENDPOINT": server.url("")}
    assert "has no model no/such" in refusal("ms:no/such", environment)


def test_a_listing_that_is_a_login_page(server: FileServer) -> None:
    environment = publish_hf(server, REPO, {})
    for path in server.files:
        if path.startswith("/api/"):
            server.files[path] = b"<!doctype html><title>Log in</title>"
    assert "its list of files is not one" in refusal(REPO, environment)


def test_a_hub_that_is_asked_too_often(server: FileServer) -> None:
    environment = publish_hf(server, REPO, {"tiny.gguf": TINY})
    reference = f"hf:{REPO}:tiny.gguf"
    waits: list[float] = []
    server.script = [answers(429, {"Retry-After": "7"})]
    assert read_model(reference, environment=environment, pause=waits.append).name == "Tiny"
    assert waits == [7.0]
    server.script = [answers(429, {"Retry-After": "3600"})]
    assert "wants us to wait 3600 s" in refusal(reference, environment)
    server.script = [answers(429)] * 9
    assert "could not be read from in 4 tries: HTTP 429" in refusal(reference, environment)


def test_a_wait_until_a_date(server: FileServer) -> None:
    server.files["/tiny.gguf"] = TINY
    waits: list[float] = []
    server.script = [answers(503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})]
    read_model(server.url("/tiny.gguf"), environment={}, pause=waits.append)
    assert waits == [0.5], "a date that is over"


def test_a_hub_that_cannot_be_reached() -> None:
    with file_server() as gone:
        address = gone.url("")
    said = refusal("a/b", {"HF_ENDPOINT": address})
    assert said.startswith("There is no a/b on this machine, and as a model on Hugging Face: ")
    said = refusal("hf:a/b", {"HF_ENDPOINT": address})
    assert "There is no" not in said
    assert "could not be read from in 4 tries" in said and "mirror" in said

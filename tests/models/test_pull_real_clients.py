"""The hubs' own clients against the test server: it speaks their protocols as they do.

Each runs in a process of its own, as its users run it, with its telemetry off.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from checkpoint_builder import checkpoint
from file_server import FileServer, file_server
from hub_server import COMMIT, move_to, publish_hf, publish_ms
from pulling import CONTENT, NAME, REPO

HF = """
import sys
from huggingface_hub import HfApi, hf_hub_download
repo, name, folder = sys.argv[1:]
for entry in HfApi().list_repo_tree(repo, recursive=True):
    if hasattr(entry, "size"):
        print(entry.path, entry.size, entry.lfs.sha256 if entry.lfs else entry.blob_id)
print(hf_hub_download(repo, name, cache_dir=folder))
"""
MS = """
import sys
from modelscope_hub import HubApi
repo, name, folder = sys.argv[1:]
for entry in HubApi().list_repo_files(repo, "model"):
    print(entry.path, entry.size, entry.sha256)
print(HubApi().download_file(repo, "model", name, local_dir=folder))
"""


def client(program: str, environment: dict[str, str], folder: Path) -> list[str]:
    """The lines that a client prints."""
    quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", program, REPO, NAME, str(folder)],
        env={**os.environ, **quiet, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_hugging_faces_own_client(server: FileServer, tmp_path: Path) -> None:
    files = {NAME: CONTENT, "config.json": checkpoint()["config.json"]}
    environment = publish_hf(server, REPO, files)
    with file_server() as cdn:
        move_to(cdn, server, f"/{REPO}/resolve/main/{NAME}")
        *listed, path = client(HF, environment, tmp_path)
        assert cdn.sent_bytes >= len(CONTENT)
    assert f"{NAME} {len(CONTENT)} {hashlib.sha256(CONTENT).hexdigest()}" in listed
    assert Path(path).read_bytes() == CONTENT
    assert COMMIT in path, "the client took the commit from our answer"


def test_modelscopes_own_client(server: FileServer, tmp_path: Path) -> None:
    environment = publish_ms(server, REPO, {NAME: CONTENT})
    listed = client(MS, environment, tmp_path / "to")
    assert f"{NAME} {len(CONTENT)} {hashlib.sha256(CONTENT).hexdigest()}" in listed
    assert (tmp_path / "to" / NAME).read_bytes() == CONTENT

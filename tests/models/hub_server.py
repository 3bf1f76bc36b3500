"""Publishes repositories on the test server, as Hugging Face and ModelScope do."""

import json
from urllib.parse import quote

from file_server import FileServer


def publish_hf(
    server: FileServer, repo: str, files: dict[str, bytes], revision: str = "main"
) -> dict[str, str]:
    """Serve `files` at the addresses of Hugging Face; returns the environment that leads there.

    Formats: huggingface_hub's `hf_api.list_repo_tree` and `hf_hub_url`, 2026-11.
    """
    listing = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "folder"}]
    for name, content in files.items():
        server.files[f"/{repo}/resolve/{revision}/{quote(name)}"] = content
        listing.append({"type": "file", "oid": "0" * 40, "size": len(content), "path": name})
    path = f"/api/models/{repo}/tree/{revision}?recursive=true"
    server.files[path] = json.dumps(listing).encode()
    return {"HF_ENDPOINT": server.url("")}


def publish_ms(
    server: FileServer, repo: str, files: dict[str, bytes], revision: str = "master"
) -> dict[str, str]:
    """Serve `files` at the addresses of ModelScope (modelscope/hub/api.py, 2026-11)."""
    found = [{"Path": "folder", "Name": "folder", "Type": "tree", "Size": 0}]
    for name, content in files.items():
        server.files[f"/models/{repo}/resolve/{revision}/{quote(name)}"] = content
        found.append({"Path": name, "Name": name, "Type": "blob", "Size": len(content)})
    path = f"/api/v1/models/{repo}/repo/files?Revision={revision}&Recursive=true"
    answer = {"Code": 200, "Message": "success", "Success": True, "Data": {"Files": found}}
    server.files[path] = json.dumps(answer).encode()
    return {"MODELSCOPE_ENDPOINT": server.url("")}


def move_to(cdn: FileServer, server: FileServer, prefix: str) -> None:
    """Let files under `prefix` live on another server, as large files of a hub do."""
    for path in [path for path in server.files if path.startswith(prefix)]:
        cdn.files[path] = server.files.pop(path)
        server.redirects[path] = cdn.url(path)

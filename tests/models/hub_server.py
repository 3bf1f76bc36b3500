"""Publishes repositories on the test server, as Hugging Face and ModelScope do."""

import hashlib
import json
from urllib.parse import quote, urlencode

from file_server import FileServer

COMMIT = "c0ffee" + "0" * 34  # what Hugging Face calls the revision


def publish_hf(
    server: FileServer, repo: str, files: dict[str, bytes], revision: str = "main"
) -> dict[str, str]:
    """Serve `files` at the addresses of Hugging Face; returns the environment that leads there.

    Formats: huggingface_hub's `hf_api.list_repo_tree` and `hf_hub_url`, 2026-11.
    """
    listing: list[dict[str, object]] = [
        {"type": "directory", "oid": "0" * 40, "size": 0, "path": "folder"}
    ]
    for name, content in files.items():
        path = f"/{repo}/resolve/{revision}/{quote(name)}"
        server.files[path] = content
        entry: dict[str, object] = {"type": "file", "size": len(content), "path": name}
        entry["oid"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        server.more_headers[path] = {"X-Repo-Commit": COMMIT}
        if name.endswith((".gguf", ".safetensors")):  # large files: git has a pointer to them
            sha256 = hashlib.sha256(content).hexdigest()
            entry["oid"] = "1" * 40
            entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 134}
            server.more_headers[path] |= {
                "X-Linked-Etag": f'"{sha256}"',
                "X-Linked-Size": str(len(content)),
            }
        listing.append(entry)
    path = f"/api/models/{repo}/tree/{revision}?recursive=true"
    server.files[path] = json.dumps(listing).encode()
    server.files[f"{path}&expand=false"] = server.files[path]  # as its own client asks
    return {"HF_ENDPOINT": server.url("")}


def publish_ms(
    server: FileServer, repo: str, files: dict[str, bytes], revision: str = "master"
) -> dict[str, str]:
    """Serve `files` at the addresses of ModelScope (modelscope/hub/api.py, 2026-11)."""
    found: list[dict[str, object]] = [
        {"Path": "folder", "Name": "folder", "Type": "tree", "Size": 0}
    ]
    for name, content in files.items():
        server.files[f"/models/{repo}/resolve/{revision}/{quote(name)}"] = content
        question = urlencode({"Revision": revision, "FilePath": name})
        server.files[f"/api/v1/models/{repo}/repo?{question}"] = content  # its own client's door
        found.append(
            {
                "Path": name,
                "Name": name,
                "Type": "blob",
                "Size": len(content),
                "Sha256": hashlib.sha256(content).hexdigest(),
            }
        )
    path = f"/api/v1/models/{repo}/repo/files?Revision={revision}&Recursive="
    answer = {"Code": 200, "Message": "success", "Success": True, "Data": {"Files": found}}
    for spelt in ("true", "True"):  # as we and as its own client ask
        server.files[path + spelt] = json.dumps(answer).encode()
    return {"MODELSCOPE_ENDPOINT": server.url("")}


def move_to(cdn: FileServer, server: FileServer, prefix: str) -> None:
    """Let files under `prefix` live on another server, as large files of a hub do."""
    for path in [path for path in server.files if path.startswith(prefix)]:
        cdn.files[path] = server.files.pop(path)
        server.redirects[path] = cdn.url(path)

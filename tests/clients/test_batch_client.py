"""The program for batches on the clients' page, against a whole service."""

import json
import sys
from pathlib import Path

import pytest
from api_scenes import batch_service, chats
from gguf_builder import llama
from test_clients import SHOWN_KEY, SHOWN_URL, run, shown

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1300)]


async def test_the_program_as_it_is_shown(tmp_path: Path) -> None:
    model = llama().write(tmp_path / "small.gguf")
    requests = tmp_path / "requests.jsonl"
    requests.write_bytes(chats(3))
    async with batch_service(tmp_path, model) as (service, _):
        text = shown("Batches", "python").replace("requests.jsonl", str(requests))
        assert SHOWN_URL in text and SHOWN_KEY in text
        program = tmp_path / "program.py"
        text = text.replace(SHOWN_URL, service.url).replace(SHOWN_KEY, "none")
        program.write_text(text, encoding="utf-8")
        said = await run(Path(sys.executable), program)
        ids = [json.loads(line)["custom_id"] for line in said.splitlines() if line.strip()]
        assert ids == ["r0", "r1", "r2"]

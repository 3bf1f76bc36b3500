"""A model that ranks, from its file to the order of documents that a client gets."""

import json
import math
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_gguf

from test_up import running_service

DOCUMENTS = ["Bread is baked at six.", "The sea is blue.", "A third one."]


def ranked(url: str, **body: Any) -> Any:
    request = urllib.request.Request(f"{url}/v1/rerank", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)["results"]


@pytest.mark.real
@pytest.mark.timeout(1200)
def test_up_serves_a_model_that_ranks(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "ranks.gguf", ranks=True)
    with running_service(tmp_path, model, ("--no-measure",)) as service:
        assert "its first answer is sound" in service.text()
        assert f"curl {service.url}/v1/rerank" in service.text()
        results = ranked(service.url, query="When is bread baked?", documents=DOCUMENTS)
        scores = {one["index"]: one["relevance_score"] for one in results}
        assert sorted(scores) == [0, 1, 2]
        assert all(0 <= score <= 1 for score in scores.values())
        assert len(set(scores.values())) == 3, "the head saw the documents"
        best = max(scores, key=lambda index: scores[index])
        (first,) = ranked(service.url, query="When is bread baked?", documents=DOCUMENTS, top_n=1)
        assert first["index"] == best
        assert math.isclose(first["relevance_score"], scores[best], rel_tol=1e-3)

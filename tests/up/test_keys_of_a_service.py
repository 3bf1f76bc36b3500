"""Keys, other addresses and TLS of a whole service, as its user sees them."""

import urllib.request
from pathlib import Path

import pytest
from service_process import StartService, answered, workhorse

ELSEWHERE = "192.0.2.1"  # RFC 5737: no machine has it


def test_keys_are_followed_by_a_running_service(start_service: StartService) -> None:
    service = start_service("--answer-tokens", "5")

    def asked(secret: str | None) -> int:
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        return answered(urllib.request.Request(f"{service.url}/v1/models", headers=headers))[0]

    assert asked(None) == 200, "without any key this machine may ask"
    secret = service.command("keys", "add", "ann").stdout.strip()
    service.until(lambda: asked(None) == 401)
    assert asked(secret) == 200
    assert service.get("/metrics?")[0] == 401
    assert service.get("/healthz") == (200, {"status": "ok", "state": "ready"})
    status = service.answering("status")  # the service's own commands have its token
    assert "ready" in status.stdout
    assert service.command("keys", "revoke", "ann").returncode == 0
    service.until(lambda: asked(secret) == 401)
    assert asked(None) == 401


@pytest.mark.parametrize("by", ["option", "settings"])
def test_another_address_needs_a_key(tmp_path: Path, small_model: Path, by: str) -> None:
    settings = tmp_path / "service.toml"
    settings.write_text(f'[serve]\nhost = "{ELSEWHERE}"\n')
    told = ["--host", ELSEWHERE] if by == "option" else ["--config", str(settings)]
    refused = workhorse(tmp_path, "up", str(small_model), "--port", "0", *told)
    assert refused.returncode == 3
    assert f"Other machines can reach {ELSEWHERE}" in refused.stderr
    assert "workhorse keys add" in refused.stderr
    workhorse(tmp_path, "keys", "add", "ann")
    opened = workhorse(tmp_path, "up", str(small_model), "--port", "0", *told)
    assert "Cannot listen" in opened.stderr, "with a key it is tried: nobody has the address"


def test_a_certificate_that_cannot_be_used_is_told_first(tmp_path: Path, small_model: Path) -> None:
    settings = tmp_path / "service.toml"
    missing = tmp_path / "nowhere.pem"
    settings.write_text(f'[serve]\ncertificate = "{missing}"\nprivate_key = "{missing}"\n')
    refused = workhorse(tmp_path, "up", str(small_model), "--config", str(settings))
    assert refused.returncode == 2
    assert f"TLS cannot use {missing}: No such file" in refused.stderr

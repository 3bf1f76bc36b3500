"""What answers through the gateway say of templates and of clients that defeat the cache."""

import json
from typing import Any

import aiohttp
from stand_ins import Exchange, StandInBackend, chunk, gateway, scripted

from workhorse.serve.figures import TokenCount
from workhorse.serve.prefixes import Prefixes
from workhorse.serve.templates import Template

RULES = " ".join(f"Rule {n}: shelf {n} is for readers of group {n % 7}." for n in range(40))
CLERK = Template("clerk", None, (("system", RULES),), "", True)


def asked(system: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": "x"}]


async def answer(exchange: Exchange) -> None:
    timings = {"cache_n": 500, "prompt_n": 9, "prompt_ms": 90.0, "predicted_n": 1}
    await exchange.begin_stream()
    await exchange.event(chunk("Yes", finish="stop", timings=timings))
    await exchange.end_stream()


async def test_hits_and_saved_seconds_are_in_the_metrics() -> None:
    prefixes = Prefixes((CLERK,))
    prefixes.ledger.of(CLERK, "horse").tokens = 500
    prefixes.ledger.prefilled("horse", 500, 5.0)
    async with (
        scripted(answer) as (_, url),
        gateway(StandInBackend(url), prefixes=prefixes) as front,
        aiohttp.ClientSession() as client,
    ):
        body: dict[str, Any] = {"messages": asked(RULES)}
        async with client.post(f"{front}/v1/chat/completions", json=body) as response:
            assert response.status == 200
        async with client.get(f"{front}/metrics") as page:
            told = await page.text()
    of = 'model="horse",template="clerk"} '
    assert 'workhorse_template_requests_total{model="horse",outcome="hit",template="clerk"}' in told
    assert f"workhorse_template_saved_tokens_total{{{of}500.0" in told
    assert f"workhorse_template_saved_seconds_total{{{of}5.0" in told


def test_a_client_that_defeats_the_cache_is_an_alarm_from_then_on() -> None:
    now_s = [100.0]
    prefixes = Prefixes(clock=lambda: now_s[0])
    count = TokenCount(900, 12, 5, None)

    def answered(number: int) -> None:
        prompt = json.dumps(asked(f"It is 12:0{number}. {RULES}")).encode()
        prefixes.answered("alice", "m", prompt, [count])

    for number in range(5):
        assert prefixes.alarms() == () or number > 3
        answered(number)
        now_s[0] += 1
    (alarm,) = prefixes.alarms()
    assert (alarm.subject, alarm.since_unix_s, alarm.over_unix_s) == ("alice", 103.0, None)
    assert alarm.finding.code == "prefix.changes-near-start"

"""A model that neither of two hosts has room for, over both by llama.cpp's RPC: forecast, measured.

Run it: `python benchmarks/fleet_spread.py --engine LLAMA_SERVER --model FILE`. The hosts are
namespaces of this machine (`fleet_rig.py`) whose memory looks smaller than it is; the link between
them can be made slower (`--mbit`, Linux' token bucket). LLAMA_SERVER has `ggml-rpc-server` beside
it, as `workhorse engine build` makes both. What is measured: tokens a second of one stream at the
gateway, by the difference of a long and a short answer; the same model on one host with all the
memory; what the links were measured at and what the forecast made of them.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from fleet_rig import HOME, Host, Lab, refusal
from fleet_service import Fleet, wait_until

PORT = 8080
ROUNDS = 5
SHORT, LONG = 8, 72
ASK = """
import json, sys, time, urllib.request as r
url, tokens, key = sys.argv[1], int(sys.argv[2]), sys.argv[3]
body = {"prompt": "Name three colours.", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
head = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
asked = r.Request(url + "/v1/completions", json.dumps(body).encode(), head)
began = time.perf_counter()
answer = json.load(r.urlopen(asked, timeout=600))
print(json.dumps([time.perf_counter() - began, answer["usage"]["completion_tokens"]]))
"""


def main() -> None:
    """Both cases, one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--room-mib", type=int, required=True, help="memory of a host, available")
    parser.add_argument("--mbit", type=int, help="rate of the link; left out: as it is")
    parser.add_argument("--cases", default="spread,alone")
    args = parser.parse_args()
    if (why := refusal()) is not None:
        raise SystemExit(why)
    found = {case: run_case(case, args) for case in args.cases.split(",")}
    print(json.dumps({"mbit": args.mbit, **found}, indent=2))


def run_case(case: str, args: argparse.Namespace) -> dict[str, Any]:
    """One fleet from its start to its end."""
    engine, model = args.engine.resolve(), args.model.resolve()
    with Lab(kept=[engine.parent, model.parent]) as lab:
        fleet = Small(lab, args.room_mib if case == "spread" else None, args.mbit)
        words = ["--engine", str(engine), "--slots", "1", "--context", "1024", "--skip-golden"]
        words += ["--trust-link"] if case == "spread" else ["--replicas", "1"]
        plan = fleet.serve(str(model), *words)
        speeds = [fleet.tokens_per_s() for _ in range(ROUNDS)]
        fleet.down()
    (spec,) = plan["replicas"]
    decode = spec["plan"]["forecast"]["decode_tokens_per_s"]
    return {
        "measured_tokens_per_s": round(statistics.median(speeds), 2),
        "samples": [round(one, 2) for one in speeds],
        "forecast_tokens_per_s": [round(decode[key], 2) for key in ("value", "low", "high")],
        "terms": {
            f"{term['device']}: {term['what']['en']}": round(1000 * term["seconds"], 2)
            for term in spec["plan"]["forecast"]["terms"]
        },
        "links": [term["source"]["en"] for term in spec["plan"]["forecast"]["terms"]][-1],
        "held_by": {one["name"]: one["needs"] for one in spec["helpers"]},
        "placement": [
            [one["device"], one["group"], one["n_bytes"]] for one in spec["plan"]["placement"]
        ],
        "ready_s": fleet.ready_s,
        "said": fleet.told,
    }


class Small(Fleet):
    """Two hosts that look as if they had little memory."""

    def __init__(self, lab: Lab, room_mib: int | None, mbit: int | None) -> None:
        self._room_mib, self._mbit = room_mib, mbit
        self.ready_s = 0.0
        self.told: list[str] = []
        super().__init__(lab, engine=None, nodes=1 if room_mib is not None else 0)

    def _host(self, name: str, address: str | None = None) -> Host:
        host = super()._host(name, address)
        if self._room_mib is not None:
            lines = Path("/proc/meminfo").read_text().splitlines()
            kept = [one for one in lines if not one.startswith(("MemAvailable", "MemFree"))]
            room = f"{self._room_mib * 1024} kB"
            host.lay_over("/proc/meminfo", "\n".join(
                [kept[0], f"MemFree: {room}", f"MemAvailable: {room}", *kept[1:], ""]
            ))  # fmt: skip
        if self._mbit is not None:
            rate = f"{self._mbit}mbit"
            bucket = ["tbf", "rate", rate, "burst", "32kb", "latency", "400ms"]
            host.run(["tc", "qdisc", "add", "dev", "eth0", "root", *bucket]).check_returncode()
        return host

    def serve(self, model: str, *options: str) -> Any:
        """`fleet up` until it answers; its plan."""
        words = ["fleet", "up", model, "--host", "0.0.0.0", "--port", str(PORT), "--json"]
        self.said = Path(f"/proc/{self.head.space.pid}/root{HOME}/up.txt")
        began = time.monotonic()
        with self.said.open("wb") as out:
            command = [sys.executable, "-m", "workhorse", *words, *options]
            self._service = self.head.start(command, out=out)
        wait_until(self._answers, 900.0, "the gateway answers")
        wait_until(lambda: '"url"' in self.said.read_text(), 900.0, "a replica serves")
        self.ready_s = round(time.monotonic() - began, 1)
        text = self.said.read_text()
        self.told = [line for line in text.splitlines() if line.startswith("· ")]
        decoder, at = json.JSONDecoder(), text.index("\n{") + 1
        return decoder.raw_decode(text, at)[0]

    def tokens_per_s(self) -> float:
        """Decode of one stream, without what an answer takes whatever its length."""
        (short_s, few), (long_s, many) = (self._ask(tokens) for tokens in (SHORT, LONG))
        return float((many - few) / (long_s - short_s))

    def _ask(self, tokens: int) -> tuple[float, int]:
        done = self.head.run([sys.executable, "-c", ASK, self.url, str(tokens), self.key])
        if done.returncode:
            raise SystemExit(f"{done.stderr}\n{self.said.read_text()[-3000:]}")
        seconds, count = json.loads(done.stdout)
        return seconds, count


if __name__ == "__main__":
    main()

"""Means for a task without a service: every request is looked at, every answer is the test's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workhorse.batch.item import Item, Reason, Result
from workhorse.batch.job import Job
from workhorse.batch.task import Answer, Check, ItemFailed, NotValid, Request
from workhorse.batch.tasks import make_task
from workhorse.batch.template_files import find_template, settle_options

# What a test says to a prompt: the answer's words, or those and why they ended.
Says = Callable[[str], str | tuple[str, str]]


def tokens_of(text: str) -> int:
    """Four letters a token, a token a Chinese character."""
    wide = sum(char > "\u2e80" for char in text)
    return wide + -(-(len(text) - wide) // 4)


def said_in(request: Request) -> str:
    """The user's message."""
    return str(request.body["messages"][-1]["content"])


@dataclass
class Means:
    """`task.Tools`, with the guarantees that the real ones give and a test can check."""

    says: Says
    context_tokens: int = 4096
    attempts: int = 3
    requests: dict[str, Request] = field(default_factory=dict)
    counted: list[str] = field(default_factory=list)
    asked: int = 0

    async def count_tokens(self, text: str) -> int:
        self.counted.append(text)
        return tokens_of(text)

    async def ask(self, request: Request, check: Check | None = None) -> Any:
        assert request.step not in self.requests, f"{request.step} is asked twice"
        self.requests[request.step] = request
        prompt = "".join(message["content"] for message in request.body["messages"])
        # What a service would refuse: prompt and answer have to fit into the context of a slot.
        assert tokens_of(prompt) + request.body["max_tokens"] <= self.context_tokens, request.step
        wrong: NotValid | None = None
        for _ in range(self.attempts):
            self.asked += 1
            said = self.says(said_in(request))
            text, finish = said if isinstance(said, tuple) else (said, "stop")
            usage = {"completion_tokens": min(tokens_of(text), request.body["max_tokens"])}
            answer = Answer(text=text, finish=finish, body={"usage": usage})
            try:
                return answer if check is None else check(answer)
            except NotValid as error:
                wrong = error
        assert wrong is not None
        raise ItemFailed(Reason(cause="not valid", seen=wrong.seen, seen_zh=wrong.seen_zh))

    async def embed(self, texts: Sequence[str]) -> None:
        return None

    def prompts(self) -> list[str]:
        """What was asked, in the order of the steps' first asking."""
        return [said_in(request) for request in self.requests.values()]


def job_of(
    template: str,
    options: Mapping[str, Any] = {},
    *,
    language: Any = "auto",
    own: Path = Path("none"),
) -> Job:
    """An order with one of the templates."""
    found = find_template(template, own)
    return Job(
        template=found.template.name,
        definition=found.definition,
        language=language,
        options=settle_options(found.template, options, Path()),
        input="in",
        output=None,
        url="http://127.0.0.1:1/v1",
    )


async def result_of(job: Job, content: str, means: Means, media_type: str = "text/plain") -> Result:
    """What the job's task makes of one document."""
    item = Item(
        number=0,
        id="a",
        source="a",
        kind="text",
        content=content,
        media_type=media_type,
        state="leased",
        attempts=0,
    )
    return await make_task(job)(item, means)

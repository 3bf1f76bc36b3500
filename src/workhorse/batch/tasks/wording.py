"""A template's prompts with a job's options in them, as requests for the service.

Every request of a job begins with the same system prompt, then the same instructions, and has
the document last: what they share is computed once and served from the engine's cache.
"""

from collections.abc import Mapping
from typing import Any

from workhorse.batch.job import Job
from workhorse.batch.option import in_prompt
from workhorse.batch.task import Tools
from workhorse.batch.tasks.kind import SYSTEM
from workhorse.batch.template import Template, check_options, fill, language_of
from workhorse.text import Language, Text

# What a chat template puts round two messages: roles, dates, a preamble of its own. The longest
# of the templates seen (gpt-oss, 2026-11) takes some 80 tokens beside the messages.
CHAT_TOKENS = 128

# Has a small model stop saying one thing over and over, as it does when it finds no end
# (SmolLM2-135M, tried 2026-11). It costs large ones quality: only what was cut off is asked again
# with it. The likeliest tokens are taken first: else the engine looks each of its vocabulary up
# among the last ones. llama.cpp's names; vLLM and LMDeploy pass over them.
ROUND_AND_ROUND: Mapping[str, Any] = {
    "repeat_penalty": 1.15,
    "repeat_last_n": 256,
    "samplers": ["top_k", "penalties", "top_p", "min_p", "temperature"],
}

_LANGUAGES: dict[Language, Text] = {"en": Text("English", "英文"), "zh": Text("Chinese", "中文")}
_ITS_OWN = "the language of the document"  # in English prompts: any but Chinese


class Wording:
    """What is asked, in words; `values` are placeholders of the task beside the options."""

    def __init__(self, template: Template, job: Job, values: Mapping[str, Text] = {}) -> None:
        self.template = template
        self.options = check_options(template, job.options)
        self._job = job
        told = {name: in_prompt(value) for name, value in self.options.items()}
        self._values: dict[Language, dict[str, str]] = {
            "en": told | {name: text.en for name, text in values.items()},
            "zh": told | {name: text.zh for name, text in values.items()},
        }

    def language(self, text: str) -> Language:
        """Which of the template's prompts suit a document: the job's, or the document's own."""
        asked = self._job.language
        wanted: Language = language_of(text) if asked == "auto" else asked
        other: Language = "zh" if wanted == "en" else "en"
        return wanted if wanted in self.template.prompts else other

    def messages(self, language: Language, prompt: str, **values: str) -> list[dict[str, str]]:
        """The system prompt and one of the template's prompts, filled in."""
        prompts = self.template.prompts[language]
        told = {"language": self._written_in(language)} | self._values[language]
        return [
            {"role": "system", "content": fill(prompts[SYSTEM], told | values).strip()},
            {"role": "user", "content": fill(prompts[prompt], told | values).strip()},
        ]

    def body(
        self,
        language: Language,
        prompt: str,
        *,
        answer_tokens: int,
        response_format: Mapping[str, Any] | None = None,
        **values: str,
    ) -> dict[str, Any]:
        """A request's body: with a limit to its answer, and little chance in its words."""
        body: dict[str, Any] = {
            "messages": self.messages(language, prompt, **values),
            "max_tokens": answer_tokens,
            "temperature": 0.2,  # 0 gives a bad answer again when it is asked again
            # Models that can think aloud would spend the answer's tokens on it.
            "chat_template_kwargs": {"enable_thinking": False},
        }
        if response_format is not None:
            body["response_format"] = response_format
        return body | self.template.request

    async def prompt_tokens(
        self, tools: Tools, language: Language, prompt: str, **values: str
    ) -> int:
        """What a prompt takes of the context with these values, the document's text left out."""
        messages = self.messages(language, prompt, **({"text": ""} | values))
        count = await tools.count_tokens("\n".join(said["content"] for said in messages))
        return count + CHAT_TOKENS

    def _written_in(self, language: Language) -> str:
        """The language of the answer, named in the prompt's own."""
        if self._job.language == "auto" and language == "en":
            return _ITS_OWN
        return _LANGUAGES[language].in_language(language)

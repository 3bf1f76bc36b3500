"""What a way of working needs of a template, and whether a template has it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from workhorse.batch.job import Job
from workhorse.batch.task import Task
from workhorse.batch.template import Template, placeholders, unusable
from workhorse.text import Text

# The prompt that every request of a job begins with.
SYSTEM = "system"
# What every prompt may hold beside the template's options: the language to write in.
EVERYWHERE = frozenset({"language"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKind:
    """A way of working, as a template names it in `task`; each module of a task has its `KIND`."""

    make: Callable[[Template, Job], Task]
    # The prompts that it asks with beside `system`, and what each has to hold.
    prompts: Mapping[str, frozenset[str]]
    # What prompts may hold more: the same for all items of a job, and what is each item's own.
    values: frozenset[str] = frozenset()
    item_values: frozenset[str] = frozenset()
    options: frozenset[str] = frozenset()  # that a template has to have
    schema: Literal["needed", "none"] = "none"

    def check(self, template: Template, where: str) -> None:
        """AppError that tells what the template lacks, or has and nobody reads."""
        for name in sorted(self.options - template.options.keys()):
            raise unusable(
                where,
                Text(
                    f"the task {template.task} needs the option `options.{name}`",
                    f"任务 {template.task} 需要选项 `options.{name}`",
                ),
            )
        self._check_schema(template, where)
        for language, prompts in template.prompts.items():
            for name in (SYSTEM, *self.prompts):
                if name not in prompts:
                    raise unusable(
                        where,
                        Text(
                            f"`prompts.{language}` lacks its `{name}`",
                            f"`prompts.{language}` 缺少 `{name}`",
                        ),
                    )
            for name, prompt in prompts.items():
                self._check_prompt(template, f"prompts.{language}", name, prompt, where)

    def _check_schema(self, template: Template, where: str) -> None:
        own = any(option.kind == "schema" for option in template.options.values())
        if self.schema == "needed" and template.schema is None and not own:
            raise unusable(
                where,
                Text(
                    f"the task {template.task} needs a `schema` of the answer",
                    f"任务 {template.task} 需要描述回答格式的 `schema`",
                ),
            )
        if self.schema == "none" and template.schema is not None:
            raise unusable(
                where,
                Text(
                    f"the task {template.task} takes no `schema`",
                    f"任务 {template.task} 不使用 `schema`",
                ),
            )

    def _check_prompt(
        self, template: Template, table: str, name: str, prompt: str, where: str
    ) -> None:
        at = f"`{table}.{name}`"
        if name != SYSTEM and name not in self.prompts:
            read = ", ".join((SYSTEM, *self.prompts))
            raise unusable(
                where,
                Text(
                    f"the task {template.task} has no prompt {at}; it has {read}",
                    f"任务 {template.task} 没有提示词 {at}；可用：{read}",
                ),
            )
        held = placeholders(prompt)
        must = self.prompts.get(name, frozenset())
        for missing in sorted(must - held):
            raise unusable(
                where,
                Text(f"{at} lacks `{{{{{missing}}}}}`", f"{at} 缺少 `{{{{{missing}}}}}`"),
            )
        own = self.item_values | frozenset().union(*self.prompts.values())
        if name == SYSTEM and (varying := sorted(held & own)):
            raise unusable(
                where,
                Text(
                    f"{at} holds `{{{{{varying[0]}}}}}`, which is another one for each document: "
                    "all requests begin with it, so that the engine computes it once",
                    f"{at} 含有 `{{{{{varying[0]}}}}}`，它随文档而变；"
                    "所有请求都以该提示词开头，引擎才能只计算一次",
                ),
            )
        allowed = own | self.values | EVERYWHERE | template.options.keys()
        known = ", ".join(sorted(allowed))
        for unknown in sorted(held - allowed):
            raise unusable(
                where,
                Text(
                    f"{at} holds `{{{{{unknown}}}}}`, which is none of {known}",
                    f"{at} 含有未知的 `{{{{{unknown}}}}}`，可用：{known}",
                ),
            )

"""The small model with a chat template that knows tools, as larger models have one."""

import struct
from pathlib import Path
from typing import BinaryIO

KEY = b"tokenizer.chat_template"
STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # by type, GGUF 3
ALIGNMENT = 32

# The form of Qwen 2.5's, for a model that was trained on the same marks.
TEMPLATE = """
{%- if tools %}
    {{- '<|im_start|>system\\nYou may call one or more functions:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}{{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools>\\nFor each call return JSON within <tool_call></tool_call>:\\n' }}
    {{- '<tool_call>\\n{\"name\": <name>, \"arguments\": <arguments>}\\n</tool_call>' }}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{\"name\": \"' }}{{- tool_call.name }}
            {{- '\", \"arguments\": ' }}{{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}
        {{- '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def number(file: BinaryIO, form: str) -> int:
    (found,) = struct.unpack(f"<{form}", file.read(struct.calcsize(form)))
    return int(found)


def pass_value(file: BinaryIO, kind: int) -> None:
    """Read past a value."""
    if kind == STRING:
        file.seek(number(file, "Q"), 1)
    elif kind == ARRAY:
        inner, count = number(file, "I"), number(file, "Q")
        if inner in SIZES:
            file.seek(SIZES[inner] * count, 1)
        else:
            for _ in range(count):
                pass_value(file, inner)
    else:
        file.seek(SIZES[kind], 1)


def with_tools(model: Path, made: Path) -> Path:
    """Write the model with another template; its weights are copied."""
    with model.open("rb") as file, made.open("wb") as out:
        file.seek(8)
        tensors, pairs = number(file, "Q"), number(file, "Q")
        for _ in range(pairs):
            key = file.read(number(file, "Q"))
            kind, begin = number(file, "I"), file.tell()
            pass_value(file, kind)
            if key == KEY:
                changed = (begin, file.tell())
        for _ in range(tensors):
            file.seek(number(file, "Q"), 1)
            file.seek(8 * number(file, "I") + 12, 1)  # its sizes, type and place
        end = file.tell()
        file.seek(0)
        out.write(file.read(changed[0]))
        words = TEMPLATE.strip().encode()
        out.write(struct.pack("<Q", len(words)) + words)
        file.seek(changed[1])
        out.write(file.read(end - changed[1]))
        out.write(b"\0" * (-out.tell() % ALIGNMENT))
        file.seek(end + -end % ALIGNMENT)
        while block := file.read(1 << 20):
            out.write(block)
    return made

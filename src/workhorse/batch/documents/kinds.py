"""What a file is, by its name: how it is read, and what its text is called; pure."""

from pathlib import PurePosixPath
from typing import Literal, NamedTuple

# `rows` and `lines` hold many items when they are the input itself, and one document in a folder.
Form = Literal["text", "html", "docx", "pdf", "sheet", "rows", "lines", "code"]


class Kind(NamedTuple):
    """How a file is read, and the media type of the text that comes out of it."""

    form: Form
    media_type: str


_CODE = {
    "python": ".py .pyi .pyw",
    "c": ".c .h",
    "c++": ".cc .cpp .cxx .hpp .hh .hxx .cu .cuh",
    "java": ".java",
    "javascript": ".js .mjs .cjs .jsx",
    "typescript": ".ts .mts .cts .tsx",
    "go": ".go",
    "rust": ".rs",
    "csharp": ".cs",
    "kotlin": ".kt .kts",
    "swift": ".swift",
    "scala": ".scala",
    "ruby": ".rb",
    "php": ".php",
    "perl": ".pl .pm",
    "lua": ".lua",
    "r": ".r",
    "julia": ".jl",
    "fortran": ".f .f90 .f95",
    "sql": ".sql",
    "sh": ".sh .bash .zsh",
    "powershell": ".ps1",
    "haskell": ".hs",
    "dart": ".dart",
    "css": ".css .scss .less",
}
_PLAIN = {
    "text/plain": ".txt .text .log .tex .eml .srt .vtt .m",
    "text/markdown": ".md .markdown .mdown",
    "text/x-rst": ".rst",
    "application/json": ".json",
    "application/yaml": ".yaml .yml",
    "application/toml": ".toml",
    "application/xml": ".xml .xsd .xsl",
}
_KINDS: dict[str, Kind] = {
    **{s: Kind("code", f"text/x-{name}") for name, all_ in _CODE.items() for s in all_.split()},
    **{s: Kind("text", media) for media, all_ in _PLAIN.items() for s in all_.split()},
    **{s: Kind("html", "text/markdown") for s in (".html", ".htm", ".xhtml")},
    ".docx": Kind("docx", "text/markdown"),
    ".docm": Kind("docx", "text/markdown"),
    ".pdf": Kind("pdf", "text/plain"),
    **{s: Kind("sheet", "text/markdown") for s in (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")},
    ".csv": Kind("rows", "text/csv"),
    ".tsv": Kind("rows", "text/tab-separated-values"),
    ".jsonl": Kind("lines", "application/jsonl"),
    ".ndjson": Kind("lines", "application/jsonl"),
}
# Documents to a person that we cannot read: they are told as failed, never passed over.
SAVE_AS = {
    ".doc": "docx", ".rtf": "docx", ".odt": "docx", ".wps": "docx", ".pages": "docx",
    ".ppt": "pdf", ".pptx": "pdf", ".odp": "pdf", ".key": "pdf", ".epub": "html", ".mobi": "html",
    ".caj": "pdf", ".ofd": "pdf", ".xps": "pdf", ".djvu": "pdf", ".msg": "txt",
}  # fmt: skip
TEXT_FORMS: tuple[Form, ...] = ("text", "code", "rows", "lines")  # read as they are


def kind_of(name: str) -> Kind | None:
    """How to read a file of this name; None: by its bytes."""
    return _KINDS.get(PurePosixPath(name).suffix.lower())


def save_as(name: str) -> str | None:
    """The form in which a document of this kind could be read; None: it is no such document."""
    return SAVE_AS.get(PurePosixPath(name).suffix.lower())

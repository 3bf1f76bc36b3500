"""The text of a Word document: mammoth makes HTML of it, which is read like a page."""

import zipfile
from pathlib import Path
from typing import Any, BinaryIO

from workhorse.batch.documents.markup import markdown_of
from workhorse.batch.documents.refusal import Unreadable, shown

# XML takes some twenty times its size in memory once it is a tree. A book of 1,000 pages has 20 MB.
XML_BYTES_MAX = 64 * 2**20
ENTRIES_MAX = 20_000
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # Office's form before 2007, and a locked one's today
_STYLES = """
p[style-name='Title'] => h1:fresh
p[style-name='Subtitle'] => h2:fresh
p[style-name='标题'] => h1:fresh
p[style-name='副标题'] => h2:fresh
p[style-name='标题 1'] => h1:fresh
p[style-name='标题 2'] => h2:fresh
p[style-name='标题 3'] => h3:fresh
p[style-name='标题 4'] => h4:fresh
p[style-name='Code'] => pre:separator('\\n')
p[style-name='Source Code'] => pre:separator('\\n')
p[style-name='HTML Preformatted'] => pre:separator('\\n')
p[style-name='Preformatted Text'] => pre:separator('\\n')
b =>
i =>
"""


def docx_text(path: Path) -> str:
    """The text of a .docx with headings, lists and tables; raises Unreadable."""
    import mammoth

    with path.open("rb") as file:
        check_archive(file)
        try:
            html = mammoth.convert_to_html(
                file,
                style_map=_STYLES,
                include_embedded_style_map=False,  # a document may bring its own: it is not trusted
                convert_image=_no_picture,
            ).value
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # whatever a damaged document makes it raise
            why = shown(f"{type(error).__name__}: {error}")
            raise Unreadable(
                f"The file is no Word document, or a damaged one ({why}).",
                f"文件不是 Word 文档或已损坏（{why}）。",
            ) from error
    return markdown_of(html)


def _no_picture(_image: Any) -> list[Any]:
    return []


def check_archive(file: BinaryIO, xml_bytes_max: int = XML_BYTES_MAX) -> None:
    """Refuse what is no archive of an Office document, or would not fit into memory unpacked.

    The sizes that an archive states hold: no more than that is ever unpacked.
    """
    if file.read(8) == _OLE:
        raise Unreadable(
            "The file asks for a password, or is of the form before Office 2007. Save it as docx "
            "or xlsx, without a password.",
            "文件已加密或为 Office 2007 之前的旧格式。请另存为不加密的 docx 或 xlsx。",
        )
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if len(entries) > ENTRIES_MAX:
                raise Unreadable(
                    f"The file holds {len(entries)} parts, more than {ENTRIES_MAX}.",
                    f"文件内含 {len(entries)} 个部分，超过 {ENTRIES_MAX} 个。",
                )
            for entry in entries:
                if entry.filename.endswith((".xml", ".rels")):
                    _check_part(archive, entry, xml_bytes_max)
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, RuntimeError) as error:
        why = shown(str(error))
        raise Unreadable(
            f"The file is no Office document, or a damaged one ({why}).",
            f"文件不是 Office 文档或已损坏（{why}）。",
        ) from error
    file.seek(0)


def _check_part(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, xml_bytes_max: int) -> None:
    if entry.file_size > xml_bytes_max:
        raise Unreadable(
            f"“{shown(entry.filename)}” in the file unpacks to {entry.file_size // 2**20} MiB of "
            f"XML; {xml_bytes_max // 2**20} are read.",
            f"文件中的 “{shown(entry.filename)}” 解压后有 {entry.file_size // 2**20} MiB XML，"
            f"上限为 {xml_bytes_max // 2**20} MiB。",
        )
    with archive.open(entry) as part:
        beginning = part.read(64 * 1024).replace(b"\0", b"")  # UTF-16 has zeros between
    # ECMA-376, part 2, 8.2.6 (2026-11) forbids it; entities that grow begin with one.
    if b"<!DOCTYPE" in beginning or b"<!ENTITY" in beginning:
        raise Unreadable(
            f"“{shown(entry.filename)}” in the file defines XML entities, which no Office program "
            "writes and which may grow without end.",
            f"文件中的 “{shown(entry.filename)}” 定义了 XML 实体；Office 程序不会生成此类内容，"
            "且可能无限膨胀。",
        )

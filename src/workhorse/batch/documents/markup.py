"""A page of HTML as text that a person would write: Markdown, without what is no content.

Headings, lists, tables and code keep their form. Menus, scripts, styles, forms and pictures go;
of a link its words stay. Whatever the nesting, one pass without recursion.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from workhorse.batch.documents.tables import table_lines
from workhorse.batch.documents.text import Decoded, decoded

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

NESTED_LISTS_MAX = 12  # deeper ones are not indented further: hostile pages nest a million
COLUMNS_MAX = 200  # of a table; a cell may claim to span any number
DROPPED = frozenset({
    "script", "style", "noscript", "template", "svg", "math", "canvas", "iframe", "object", "embed",
    "audio", "video", "map", "head", "nav", "select", "button", "input", "textarea", "datalist",
    "dialog", "rp",
})  # fmt: skip
DROPPED_ROLES = frozenset(("navigation", "search", "menu", "menubar", "banner", "contentinfo"))
HEADINGS = {f"h{level}": level for level in range(1, 7)}
BLOCKS = frozenset({
    *HEADINGS, "address", "article", "aside", "blockquote", "body", "caption", "center", "dd",
    "details", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "header",
    "hgroup", "hr", "html", "legend", "li", "main", "ol", "p", "pre", "section", "summary", "table",
    "tbody", "td", "tfoot", "th", "thead", "tr", "ul",
})  # fmt: skip
# A table that holds one of these lays out a page; it is read as text, cell after cell.
LAYOUT = frozenset({
    "table", "h1", "h2", "h3", "h4", "ul", "ol", "pre", "blockquote", "section", "article", "form",
})  # fmt: skip
_WHITE = re.compile(r"[ \t\n\r\f\v]+")
# In Chinese and Japanese a line end of the source is no space between words.
_WIDE = r"[\u2e80-\u303f\u3041-\u9fff\uf900-\ufaff\uff01-\uff60]"
_WIDE_LINE_END = re.compile(rf"(?<={_WIDE})[ \t]*\r?\n\s*(?={_WIDE})")
_CHARSET = re.compile(rb"<meta[^>]{0,300}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_LANGUAGE = re.compile(r"\b(?:language|lang|highlight-source|brush:)[-\s]?([\w+#-]{1,20})\b")


def decoded_page(data: bytes) -> Decoded:
    """The source of a page; what its `<meta charset>` says is believed where it is possible."""
    named = _CHARSET.search(data, 0, 4096)
    return decoded(data, named=named[1].decode("ascii") if named else None)


def markdown_of(html: str) -> str:
    """The text of a page or of a part of one; empty where it has none."""
    from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser

    # As a browser with scripts sees it: what is inside <noscript> is for others.
    page = LexborHTMLParser(html, scripting=True, options=LexborDocumentOptions.WO_EVENTS)
    text = ""
    for root in (_main_part(page.css("main, [role=main]")), page.body):
        if root is not None and not text:
            text = _text_of(root, DROPPED)
    if not text and page.body is not None:  # a page that is all one menu
        text = _text_of(page.body, DROPPED - {"nav", "button"})
    title = page.css_first("title")
    words = _WHITE.sub(" ", title.text()).strip() if title is not None else ""
    if text and words and not re.search(r"^# ", text, re.MULTILINE):
        return f"# {words}\n\n{text}"
    return text


def _main_part(found: list["LexborNode"]) -> "LexborNode | None":
    return found[0] if len(found) == 1 else None


def _text_of(root: "LexborNode", dropped: frozenset[str]) -> str:
    writer = _Writer(_layout_tables(root, dropped))
    for step, node in _steps(root, dropped):
        if node.is_text_node:
            if step == "in":
                writer.words(node.text_content or "")
        elif step == "in":
            writer.begin(node.tag or "", node)
        else:
            writer.end(node.tag or "")
    writer.close_block()
    return "\n".join(writer.lines).strip("\n")


def _layout_tables(root: "LexborNode", dropped: frozenset[str]) -> frozenset[int]:
    """The tables that lay out a page, by their place in memory."""
    found: set[int] = set()
    open_tables: list[int] = []
    for step, node in _steps(root, dropped) if root.css_first("table") is not None else ():
        if step == "in" and open_tables and node.tag in LAYOUT:
            found.add(open_tables[-1])
        if node.tag == "table":
            if step == "in":
                open_tables.append(node.mem_id)
            else:
                open_tables.pop()
    return frozenset(found)


def _steps(
    root: "LexborNode", dropped: frozenset[str]
) -> Iterator[tuple[Literal["in", "out"], "LexborNode"]]:
    """Each node below `root` when it begins and when it ends, in the order of the page."""
    node, path = root.first_child, [root]
    while path:
        if node is None:
            node = path.pop()
            if path:
                yield "out", node
                node = node.next
            continue
        if _is_content(node, dropped):
            yield "in", node
            path.append(node)
            node = node.first_child
        else:
            node = node.next


def _is_content(node: "LexborNode", dropped: frozenset[str]) -> bool:
    if node.is_text_node:
        return True
    if not node.is_element_node or node.tag in dropped:
        return False
    attributes = node.attributes
    if "hidden" in attributes or attributes.get("aria-hidden") == "true":
        return False
    if node.tag == "footer" and node.parent is not None and node.parent.tag == "body":
        return False
    return (attributes.get("role") or "") not in DROPPED_ROLES


@dataclass(slots=True)
class _List:
    number: int | None  # of the next item; None: bullets


@dataclass(slots=True)
class _Table:
    rows: list[list[str]] = field(default_factory=list)
    span: int = 1  # columns of the cell that is open


class _Writer:
    """Puts the pieces of a page together, line by line."""

    def __init__(self, layouts: frozenset[int]) -> None:
        self.lines: list[str] = []
        self._layouts = layouts
        self._inline: list[str] = []
        self._lists: list[_List] = []
        self._tables: list[_Table | None] = []  # None: one that lays out
        self._mark = ""  # of the list item that begins with the next block
        self._heading = 0
        self._quotes = self._quoted_before = 0
        self._after_item = False  # whether the last block was one: no empty line between two
        self._pre = 0
        self._language = ""

    def words(self, text: str) -> None:
        """Text as it stands in the source."""
        if not self._pre:
            text = _WHITE.sub(" ", _WIDE_LINE_END.sub("", text))
        self._inline.append(text)

    def begin(self, tag: str, node: "LexborNode") -> None:
        """An element begins."""
        if tag in BLOCKS and self._table is None and not self._pre:
            self.close_block()
        if tag == "br":
            self._inline.append("\n")
        elif tag == "img" and (words := (node.attributes.get("alt") or "").strip()):
            self._inline.append(f"![{words}]")
        elif tag == "code":
            if self._pre:
                self._language = self._language or _language(node)
            else:
                self._inline.append("`")
        elif tag == "pre":
            self._begin_pre(node)
        elif self._pre:  # whatever else is in it is text
            return
        elif tag == "table":
            self._begin_table(node)
        elif self._table is not None:
            self._begin_in_table(self._table, tag, node)
        elif tag in HEADINGS:
            self._heading = HEADINGS[tag]
        elif tag in ("ul", "ol"):
            self._lists.append(_List(_first_number(node) if tag == "ol" else None))
        elif tag == "li":
            self._begin_item()
        elif tag == "blockquote":
            self._quotes = min(self._quotes + 1, NESTED_LISTS_MAX)
        elif tag == "dd":
            self._mark = ": "

    def end(self, tag: str) -> None:
        """An element ends."""
        if tag == "code" and not self._pre:
            self._inline.append("`")
        elif tag == "pre":
            self._end_pre()
        elif self._pre:
            return
        elif tag == "table":
            self._end_table()
        elif self._table is not None:
            self._end_in_table(self._table, tag)
        elif tag in BLOCKS:
            self.close_block()
            if tag in HEADINGS:
                self._heading = 0
            elif tag in ("ul", "ol") and self._lists:
                self._lists.pop()
                self._after_item = self._after_item and bool(self._lists)
            elif tag == "blockquote":
                self._quotes = max(0, self._quotes - 1)
            elif tag in ("li", "dd"):
                self._mark = ""

    def close_block(self) -> None:
        """Write what has come together as one paragraph, heading or list item."""
        text, self._inline = "".join(self._inline), []
        lines = [" ".join(line.split(" ")).strip() for line in text.split("\n")]
        lines = [re.sub(r" {2,}", " ", line) for line in lines if line]
        if not lines:
            return
        if self._heading:
            lines = ["#" * self._heading + " " + " ".join(lines)]
        self._write(lines)

    def _write(self, lines: list[str]) -> None:
        depth = min(len(self._lists), NESTED_LISTS_MAX)
        in_list = depth > 0 and bool(self._mark)
        quote = "> " * self._quotes
        first = quote + "  " * max(0, depth - 1) + self._mark
        later = quote + "  " * depth
        if self.lines and not (in_list and self._after_item):
            self.lines.append(("> " * min(self._quotes, self._quoted_before)).rstrip())
        self._after_item, self._quoted_before = in_list, self._quotes
        self.lines.append((first if self._mark else later) + lines[0])
        self.lines += [(later + line).rstrip() for line in lines[1:]]
        self._mark = ""

    # --- lists and code ---

    def _begin_item(self) -> None:
        now = self._lists[-1] if self._lists else _List(None)
        if now.number is None:
            self._mark = "- "
        else:
            self._mark = f"{now.number}. "
            now.number += 1

    def _begin_pre(self, node: "LexborNode") -> None:
        self._pre += 1
        if self._pre == 1 and self._table is None:
            self._language = _language(node)

    def _end_pre(self) -> None:
        self._pre -= 1
        if self._pre or self._table is not None:
            return
        text, self._inline = "".join(self._inline), []
        code = text.replace("\r\n", "\n").strip("\n")
        if code.strip():
            fence = "```" if "```" not in code else "~~~~"
            self._write([f"{fence}{self._language}", *code.split("\n"), fence])
        self._language = ""

    # --- tables ---

    @property
    def _table(self) -> _Table | None:
        return self._tables[-1] if self._tables else None

    def _begin_table(self, node: "LexborNode") -> None:
        self._tables.append(None if node.mem_id in self._layouts else _Table())

    def _begin_in_table(self, table: _Table, tag: str, node: "LexborNode") -> None:
        if tag == "tr":
            table.rows.append([])
        elif tag in ("td", "th"):
            self._inline = []
            span = (node.attributes.get("colspan") or "1").strip()
            table.span = min(int(span), COLUMNS_MAX) if span.isdecimal() and len(span) < 6 else 1
        elif tag == "caption":
            self._inline = []
        elif tag in BLOCKS:
            self._inline.append(" ")

    def _end_in_table(self, table: _Table, tag: str) -> None:
        if tag in ("td", "th"):
            words = _WHITE.sub(" ", "".join(self._inline)).strip().replace("|", "\\|")
            self._inline = []
            if not table.rows:
                table.rows.append([])
            row = table.rows[-1]
            row += [words, *[""] * (table.span - 1)][: max(0, COLUMNS_MAX - len(row))]
        elif tag == "caption":
            self.close_block()
        elif tag in BLOCKS:
            self._inline.append(" ")

    def _end_table(self) -> None:
        table = self._tables.pop()
        if table is None:
            self.close_block()
            return
        self._inline = []
        lines = table_lines(table.rows)
        if lines:
            self._write(lines)


def _language(node: "LexborNode") -> str:
    found = _LANGUAGE.search((node.attributes.get("class") or "")[:300])
    return found[1] if found else ""


def _first_number(node: "LexborNode") -> int:
    start = (node.attributes.get("start") or "1").strip()
    return int(start) if start.isdecimal() and len(start) < 9 else 1

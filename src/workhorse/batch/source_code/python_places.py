"""Where docstrings go in a Python file, by `ast` and `tokenize`: nothing is printed anew. Pure."""

import ast
import io
import keyword
import sys
import tokenize
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from workhorse.batch.source_code.place import (
    NotCommentable,
    Place,
    leading_space,
    line_end_of,
    line_starts,
    lines_of,
    source_of,
)

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Documented = Definition | ast.Module
MARK = "\ufeff"  # a byte order mark that came with the text

_CODING = tokenize.cookie_re  # PEP 263


class Found(NamedTuple):
    """A module, class or function of a file."""

    node: Documented
    name: str
    inner: bool  # a function's own


def parsed(text: str) -> ast.Module:
    """The syntax tree of a file's text; raises NotCommentable, whatever the text is."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that are no good: not ours to judge
            return ast.parse(text.removeprefix(MARK))
    except SyntaxError as error:
        line = f" (line {error.lineno})" if error.lineno else ""
        raise NotCommentable(
            f"It is not valid Python {version}: {error.msg}{line}.",
            f"不是有效的 Python {version} 代码：{error.msg}{line}。",
        ) from error
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise NotCommentable(
            f"Python {version} cannot parse it: {error or type(error).__name__}.",
            f"Python {version} 无法解析：{error or type(error).__name__}。",
        ) from error


def found_in(tree: ast.Module) -> Iterator[Found]:
    """The module and every class and function in it, in an order that comments do not change."""
    yield Found(tree, "", False)
    waiting: list[tuple[ast.AST, str, bool]] = [(tree, "", False)]
    while waiting:
        node, prefix, inner = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Definition):
                name = prefix + child.name
                yield Found(child, name, inner)
                deeper = inner or not isinstance(child, ast.ClassDef)
                waiting.append((child, name + ".", deeper))
            elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                waiting.append((child, prefix, inner))


def docstring_of(node: Documented) -> ast.Constant | None:
    """The literal that is a definition's docstring."""
    match node.body[:1]:
        case [ast.Expr(value=ast.Constant(value=str()) as literal)]:
            return literal
    return None


def places_in(text: str, *, replace: bool, private: bool) -> tuple[list[Place], int]:
    """Where a docstring may be put, and how many definitions were not understood.

    `replace`: also where there is one. `private`: also for names with an underscore in front and
    for functions inside of functions. Overloads and setters get none: their docstrings are read
    by nobody.
    """
    source_of(text)
    tree = parsed(text)
    file = _File(text.removeprefix(MARK))
    places, left_out = [], 0
    for found in found_in(tree):
        literal = docstring_of(found.node)
        if (literal and not replace) or not _is_wanted(found, private):
            continue
        node = found.node
        if isinstance(node, ast.Module):
            place = file.module(node, literal)
        else:
            place = file.definition(node, found.name, literal)
        if place is not None:
            places.append(_shifted(place, len(MARK.encode()) if text.startswith(MARK) else 0))
        elif found.node.body:
            left_out += 1
    return sorted(places, key=lambda place: place.at), left_out


def _is_wanted(found: Found, private: bool) -> bool:
    node = found.node
    if isinstance(node, ast.Module):
        return bool(node.body)
    for decorator in node.decorator_list:
        last = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = last.attr if isinstance(last, ast.Attribute) else getattr(last, "id", "")
        if name in ("overload", "setter", "deleter"):
            return False
    hidden = found.inner or any(part.startswith("_") for part in found.name.split("."))
    return private or not hidden


def parameters_of(node: Documented) -> frozenset[str] | None:
    """What a docstring may describe as a parameter; None: nobody can tell from this file."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        given = node.args
        names = {one.arg for one in [*given.posonlyargs, *given.args, *given.kwonlyargs]}
        names |= {one.arg for one in (given.vararg, given.kwarg) if one}
        if given.kwarg:  # what is taken out of it by name is a parameter to the caller
            names |= {
                one.value
                for one in ast.walk(node)
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
                if one.value.isidentifier() and not keyword.iskeyword(one.value)
            }
        return frozenset(names - {"self", "cls"})
    if isinstance(node, ast.Module):
        return frozenset()
    names = set()
    makers = [one for one in node.body if isinstance(one, ast.FunctionDef)]
    for maker in makers:
        if maker.name in ("__init__", "__new__"):
            names |= parameters_of(maker) or frozenset()
    if not names and (node.bases or node.keywords or node.decorator_list):
        return None  # its base or its decorator makes the constructor
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            names.add(one.target.id)
    return frozenset(names)


def _shifted(place: Place, by: int) -> Place:
    moved = {name: getattr(place, name) + by for name in ("begin", "end", "header_end", "at") if by}
    return msgspec.structs.replace(place, **moved)


class _File:
    """One file's lines and tokens; positions in bytes, tokens in characters."""

    def __init__(self, text: str) -> None:
        self.source = text.encode()
        self.lines = lines_of(self.source)
        self.starts = line_starts(self.lines)
        self.line_end = line_end_of(self.source)
        self.tokens = _tokens(self.lines)
        self.index = {token.start: index for index, token in enumerate(self.tokens)}
        indents = [token.string for token in self.tokens if token.type == tokenize.INDENT]
        self.unit = indents[0].strip("\f") if indents else ""
        if not self.unit or self.unit.strip(" \t"):
            self.unit = "    "

    def byte(self, line: int, characters: int) -> int:
        """The byte of a token's position."""
        return (
            self.starts[line - 1] + len(self.lines[line - 1].decode()[:characters].encode())
            if line <= len(self.lines)
            else len(self.source)
        )

    def literal(self, node: ast.Constant) -> tuple[int, int]:
        """Where a docstring begins and ends."""
        begin = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        return begin, end

    def is_blank(self, line: int) -> bool:
        """Whether the line is empty, or none."""
        return line > len(self.lines) or not self.lines[line - 1].strip()

    def module(self, tree: ast.Module, literal: ast.Constant | None) -> Place | None:
        """The place of the module's own docstring."""
        place = partial(
            Place, name="", kind="module", line=1, begin=0, end=len(self.source), header_end=0,
            parameters=frozenset(),
        )  # fmt: skip
        if literal:
            begin, end = self.literal(literal)
            return place(at=begin, cut=end - begin)
        first = self.first_of(tree.body[0])
        line = self.below_the_head(first)
        blank = "" if self.is_blank(line) else self.line_end
        return place(at=self.starts[line - 1], after=self.line_end + blank)

    def first_of(self, statement: ast.stmt) -> int:
        """The line in which a statement begins, with its decorators."""
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        return min([statement.lineno, *(one.lineno for one in decorators)])

    def below_the_head(self, first: int) -> int:
        """The line before which a module's docstring goes: below the licence, above the code.

        Comments that touch the code belong to it.
        """
        line = 1
        for number, here in enumerate(self.lines[: min(2, first - 1)], 1):
            if here.startswith(b"#!") or _CODING.match(here.decode()):
                line = number + 1
        below = line
        while below < first and self.lines[below - 1].strip().startswith(b"#"):
            below += 1
        return below if self.is_blank(below) else line

    def definition(self, node: Definition, name: str, literal: ast.Constant | None) -> Place | None:
        """The place of a class's or a function's docstring."""
        characters = len(self.lines[node.lineno - 1][: node.col_offset].decode())
        start = self.index.get((node.lineno, characters))
        colon = None if start is None else _colon(self.tokens, start)
        if colon is None:
            return None
        outer = leading_space(self.lines[node.lineno - 1])
        first = self.first_of(node)
        end = self.starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        is_class = isinstance(node, ast.ClassDef)
        after_colon = self.byte(*self.tokens[colon].end)
        place = partial(
            Place, name=name, kind="class" if is_class else "function", line=first,
            begin=self.starts[first - 1], end=end, header_end=after_colon,
            parameters=parameters_of(node),
        )  # fmt: skip
        if literal:
            begin, end = self.literal(literal)
            line = self.lines[literal.lineno - 1]
            alone = not line[: literal.col_offset].strip(b" \t\f")
            indent = leading_space(line) if alone else outer + self.unit
            return place(at=begin, cut=end - begin, indent=indent)
        token = self.tokens[colon + 1]
        if token.type == tokenize.COMMENT:
            token = self.tokens[colon + 2]
        if token.type == tokenize.NEWLINE:
            return self.in_block(place, colon, token.start[0] + 1, is_class)
        return self.in_line(place, outer + self.unit, after_colon, self.tokens[colon + 1])

    def in_block(
        self, place: Callable[..., Place], colon: int, line: int, is_class: bool
    ) -> Place | None:
        """Below the line of a header whose body is a block."""
        body = colon
        while body < len(self.tokens) and self.tokens[body].type != tokenize.INDENT:
            body += 1
        if body == len(self.tokens):
            return None
        indent = self.tokens[body].string.strip("\f")
        blank = self.line_end if is_class and not self.is_blank(line) else ""
        at = self.starts[line - 1]
        return place(at=at, before=indent, after=self.line_end + blank, indent=indent)

    def in_line(
        self,
        place: Callable[..., Place],
        indent: str,
        after_colon: int,
        first: tokenize.TokenInfo,
    ) -> Place | None:
        """Between a header and its body in the same line: `def f(): pass` becomes a block."""
        body = self.byte(*first.start)
        space = self.source[after_colon:body].decode()
        if space.strip(" \t"):
            return None  # a backslash and a line's end
        # The space behind the colon becomes part of the body's indentation where it can.
        at, rest = body, indent
        if indent.endswith(space):
            at, rest = after_colon, indent.removesuffix(space)
        end = self.line_end
        return place(at=at, before=end + indent, after=end + rest, indent=indent)


def _tokens(lines: Sequence[bytes]) -> list[tokenize.TokenInfo]:
    text = "".join(line.decode().rstrip("\r\n") + "\n" for line in lines)
    try:
        return list(tokenize.generate_tokens(io.StringIO(text, newline="\n").readline))
    except (tokenize.TokenError, SyntaxError) as error:
        raise NotCommentable(
            f"Python's tokenizer cannot read it: {error}.", f"Python 分词器无法读取：{error}。"
        ) from error


def _colon(tokens: Sequence[tokenize.TokenInfo], start: int) -> int | None:
    """The colon at the end of the header that begins at a token."""
    depth = lambdas = 0
    for index in range(start, len(tokens) - 2):
        token = tokens[index]
        if token.type == tokenize.OP and token.string in "([{":
            depth += 1
        elif token.type == tokenize.OP and token.string in ")]}":
            depth -= 1
        elif depth == 0 and token.type == tokenize.NAME and token.string == "lambda":
            lambdas += 1
        elif depth == 0 and token.type == tokenize.OP and token.string == ":":
            if not lambdas:
                return index
            lambdas -= 1
    return None

"""Set the host: read the settings, change them with the originals kept, and restore those.

Values are lost with the next start of the machine, whoever set them: what a restart has reset
is seen as restored. `root` is `/`, or a tree that stands for it in tests.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Literal

from workhorse.doctor.host import Change, choices_path
from workhorse.errors import EXIT_NO, AppError
from workhorse.knowledge.host_settings import Knob, knobs, place_pattern
from workhorse.machine.files import DirectoryFiles, HostFiles
from workhorse.machine.host_journal import (
    JOURNAL,
    Journal,
    Original,
    locked,
    read_journal,
    write_journal,
)
from workhorse.machine.kernel_text import words
from workhorse.text import Text

Write = Callable[[Path, str], None]
Ending = Literal["changed", "restored", "as it was", "left", "failed"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one file. `left`: somebody else changed it meanwhile, so it was not written."""

    knob: str
    path: str  # without the leading slash
    before: str | None
    wanted: str
    now: str | None
    ending: Ending
    why: Text | None = None


# ---------------------------------------------------------------- reading


def read_settings(files: HostFiles) -> dict[str, str]:
    """The text of every setting's files, and of those beside them, by path."""
    texts: dict[str, str] = {}
    for knob in knobs():
        for place in knob.places:
            found = {path: text for path in _expand(files, place) if (text := files.text(path))}
            texts |= found
            for path in found:
                beside = choices_path(knob, path)
                if beside and (choices := files.text(beside)):
                    texts[beside] = choices
            if found:
                break
    return texts


def read_only(root: Path, paths: Iterable[str]) -> frozenset[str]:
    """Those of `paths` that not even root may write: a read-only mount, or no such permission."""
    return frozenset(path for path in paths if _is_read_only(root / path))


def write_value(path: Path, value: str) -> None:
    """Hand one value to the kernel, in one write. Raises OSError when it refuses."""
    # No O_CREAT: a setting that is gone must not become a plain file.
    handle = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(handle, value.encode() + b"\n")
    finally:
        os.close(handle)


def _expand(files: HostFiles, place: str) -> Iterator[str]:
    before, star, _ = place.partition("*")
    if not star:
        yield place
        return
    folder = before.rpartition("/")[0]
    _, _, inside = place.partition(f"{folder}/")
    pattern, slash, rest = inside.partition("/")
    for name in files.names(folder):
        if place_pattern(pattern).fullmatch(name):
            yield f"{folder}/{name}{slash}{rest}"


def _is_read_only(path: Path) -> bool:
    try:
        mode, mount = path.stat().st_mode, os.statvfs(path)
    except OSError:
        return False  # writing will say why not
    return not mode & 0o222 or bool(mount.f_flag & os.ST_RDONLY)


# ---------------------------------------------------------------- changing


def apply(
    root: Path, folder: Path, changes: Sequence[Change], *, write: Write = write_value
) -> tuple[Outcome, ...]:
    """Make the changes, the originals kept in `folder` first; one that fails stops no other.

    Raises AppError, with nothing changed, when the originals cannot be kept, belong to another
    machine, or another process is at work.
    """
    with locked(folder):
        host = _Host(root, write)
        journal = read_journal(folder) or host.new_journal()
        host.refuse_foreign(journal, folder)
        order = [knob.name for knob in knobs()]
        todo: list[Change] = []
        outcomes: list[Outcome] = []
        for change in sorted(changes, key=lambda change: order.index(change.knob)):
            now = host.value(change.knob, change.path)
            if now == change.after:
                outcomes.append(_outcome(change, now, now, "as it was"))
            elif now is None:
                outcomes.append(_outcome(change, now, now, "failed", _UNREADABLE))
            else:
                todo.append(replace(change, before=now))
        if not todo:
            return tuple(outcomes)
        journal = _with_originals(journal, todo)
        for _, group in groupby(todo, key=lambda change: change.knob):
            together = tuple(group)
            # Before the write: a kill between the two must find the value known as ours.
            journal = _with_ours(journal, {c.path: c.after for c in together}, host.boot_id)
            write_journal(folder, journal)
            done = [host.change(change) for change in together]
            # The kernel may take a value and make another of it: that is of our doing as well.
            odd = {o.path: o.now for o in done if o.now not in (None, o.before, o.wanted)}
            if odd:
                journal = _with_ours(journal, odd, host.boot_id)
                write_journal(folder, journal)
            outcomes += done
        unlike = tuple(o for o in journal.originals if host.value(o.knob, o.path) != o.value)
        if unlike != journal.originals:
            write_journal(folder, replace(journal, originals=unlike))
        return tuple(outcomes)


def undo(
    root: Path,
    folder: Path,
    *,
    only: Collection[str] | None = None,
    force: bool = False,
    write: Write = write_value,
) -> tuple[Outcome, ...]:
    """Restore the originals kept in `folder`, those of the knobs `only` or all.

    What somebody else changed meanwhile is left as it is without `force`. What could not be
    restored stays kept. Empty when nothing is kept. Raises AppError as `apply` does.
    """
    if read_journal(folder) is None:
        return ()
    with locked(folder):
        journal = read_journal(folder)
        if journal is None:
            return ()
        host = _Host(root, write)
        host.refuse_foreign(journal, folder)
        outcomes: list[Outcome] = []
        kept: list[Original] = []
        for original in journal.originals:
            if only is not None and original.knob not in only:
                kept.append(original)
                continue
            outcome = host.restore(original, force=force)
            outcomes.append(outcome)
            if outcome.ending in ("left", "failed"):
                kept.append(original)
        write_journal(folder, replace(journal, originals=tuple(kept)))
        return tuple(outcomes)


class _Host:
    """The settings of one machine, as they are read and written."""

    def __init__(self, root: Path, write: Write) -> None:
        self._root = root
        self._files = DirectoryFiles(root)
        self._write = write
        self._knobs: dict[str, Knob] = {knob.name: knob for knob in knobs()}
        self._machine_id = words(self._files.text("etc/machine-id"), longest=64)
        self.boot_id = words(self._files.text("proc/sys/kernel/random/boot_id"), longest=64)

    def new_journal(self) -> Journal:
        """A journal of this machine without originals."""
        return Journal(datetime.now(UTC).isoformat(timespec="seconds"), self._machine_id, ())

    def refuse_foreign(self, journal: Journal, folder: Path) -> None:
        """AppError when the originals are those of another machine (a shared home folder)."""
        ids = {journal.machine_id, self._machine_id} - {None}
        if len(ids) > 1:
            path = folder / JOURNAL
            raise AppError(
                Text(
                    f"{path} holds the original settings of another machine. Nothing was changed.",
                    f"{path} 保存的是另一台机器的原始设置。未做任何更改。",
                ),
                Text(
                    "Set WORKHORSE_HOME to a folder of this machine alone.",
                    "请把 WORKHORSE_HOME 设为仅供本机使用的目录。",
                ),
                exit_code=EXIT_NO,
            )

    def value(self, knob: str, path: str) -> str | None:
        """What the file holds now."""
        return self._knobs[knob].value_in(self._files.text(path))

    def change(self, change: Change) -> Outcome:
        """Write and read again."""
        why = self._refused(change.path, change.after)
        now = self.value(change.knob, change.path)
        if now == change.after:
            return _outcome(change, change.before, now, "changed")
        return _outcome(change, change.before, now, "failed", why or _not_taken(now))

    def restore(self, original: Original, *, force: bool) -> Outcome:
        """Bring back the original where it is ours to do so."""
        before = self.value(original.knob, original.path)
        change = Change(original.knob, original.path, before or "", original.value)
        if before == original.value:
            reset = original.boot_id not in (None, self.boot_id) and original.ours
            return _outcome(change, before, before, "as it was", _RESET if reset else None)
        if before is None:
            # A restart took our value with it; a CPU that is off may come back with it.
            if self.boot_id is not None and original.boot_id not in (None, self.boot_id):
                return _outcome(change, None, None, "as it was", _GONE)
            return _outcome(change, None, None, "failed", _UNREADABLE)
        if before not in original.ours and not force:
            return _outcome(change, before, before, "left", _others(before))
        why = self._refused(original.path, original.value)
        now = self.value(original.knob, original.path)
        if now == original.value:
            return _outcome(change, before, now, "restored")
        return _outcome(change, before, now, "failed", why or _not_taken(now))

    def _refused(self, path: str, value: str) -> Text | None:
        """Write; why the kernel refused it."""
        try:
            self._write(self._root / path, value)
        except OSError as error:
            why = error.strerror or str(error)
            return Text(f"The kernel refuses it: {why}.", f"内核拒绝写入：{why}。")
        return None


def _outcome(
    change: Change, before: str | None, now: str | None, ending: Ending, why: Text | None = None
) -> Outcome:
    return Outcome(change.knob, change.path, before, change.after, now, ending, why)


def _with_originals(journal: Journal, changes: Sequence[Change]) -> Journal:
    """The journal with what these files hold now; first originals stay."""
    there = {original.path for original in journal.originals}
    added = [Original(c.knob, c.path, c.before) for c in changes if c.path not in there]
    order = [knob.name for knob in knobs()]
    every = sorted((*journal.originals, *added), key=lambda original: order.index(original.knob))
    return replace(journal, originals=tuple(every))


def _with_ours(journal: Journal, values: Mapping[str, str | None], boot_id: str | None) -> Journal:
    """The journal with one more value for each path as our own."""
    marked = []
    for original in journal.originals:
        value = values.get(original.path)
        if value is not None:
            ours = tuple(dict.fromkeys((*original.ours, value)))
            original = replace(original, ours=ours, boot_id=boot_id)
        marked.append(original)
    return replace(journal, originals=tuple(marked))


def _not_taken(now: str | None) -> Text:
    shown = now or "?"
    return Text(f"Written, but it reads {shown}.", f"已写入，但读回的是 {shown}。")


def _others(now: str) -> Text:
    return Text(
        f"Somebody else has set it to {now} since.",
        f"其间已被他人改为 {now}。",
    )


_UNREADABLE = Text("It cannot be read now.", "目前无法读取。")
_RESET = Text("The restart has reset it already.", "重启已将其复位。")
_GONE = Text("It went with the restart.", "重启后已不存在。")

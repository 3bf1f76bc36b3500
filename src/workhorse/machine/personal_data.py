"""Take out of a text what names a person, a place or one specimen of a part. Pure.

What a capture is for stays: models, versions, figures, PCI addresses. Each thing taken out is
replaced, never cut, so that columns and lines stay where the readers look for them. The same text
always becomes the same text: a path in a file and the folder it names still fit together.
"""

import re
from collections.abc import Collection

GONE = "removed"
_ANY_CASE = re.IGNORECASE

# Words that say nothing about their owner; taken out as a name, they would break every text.
_EVERYDAY = frozenset({
    "localhost", "localdomain", "linux", "gpu", "gpus", "cpu", "server", "servers", "node", "host",
    "machine", "nvidia", "root", "admin", "user", "users", "ubuntu", "debian", "centos", "rocky",
    "fedora", "memory", "disk", "data", "home", "test", "kernel", "tesla", "amd", "intel",
    "default", "none", "unknown", "system", "driver", "name", "info", "docker", "container",
    "workstation",
})  # fmt: skip
_SECRET_MIN = 3  # shorter names are parts of every table

_UUID = re.compile(
    r"\b(?:(?:GPU|MIG)-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
    _ANY_CASE,
)
_LONG_HEX = re.compile(r"\b[0-9a-f]{32,}\b", _ANY_CASE)  # machine ids, container ids, keys
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:])", _ANY_CASE)
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
# Not within a longer number: versions of five parts and those with leading zeros stay.
_IPV4 = re.compile(rf"(?<![\w.-]){_OCTET}(?:\.{_OCTET}){{3}}(?![\w-]|\.\w)")
_HEX4 = r"[0-9a-f]{1,4}"
_IPV6 = re.compile(
    rf"(?<![\w:.])(?:(?:{_HEX4}:){{7}}{_HEX4}|(?:{_HEX4}:){{1,6}}(?::{_HEX4}){{1,6}})(?![\w:])",
    _ANY_CASE,
)
# systemd's units look like e-mail: user@1000.service.
_EMAIL = re.compile(
    r"\b[\w.+-]{1,64}@(?:[\w-]{1,63}\.)+"
    r"(?!(?:service|slice|scope|socket|target|timer|mount|device)\b)[a-z]{2,24}\b",
    _ANY_CASE,
)
_HOME = re.compile(r"/(?:home|Users)/[^\s:;,'\"|<>()]+")
_NAMED = re.compile(
    r"^([ \t]*(?:[\w-]+ ){0,3}?(?:serial(?: ?number)?|uuid|pdi|asset tag|host ?name|user ?name"
    r"|static hostname|machine id|boot id|clusteruuid|guid)[ \t]*[:=][ \t]*)(\S.*)$",
    _ANY_CASE | re.MULTILINE,
)
_XML_NAMED = re.compile(
    r"(<(serial|uuid|pdi|gpu_fabric_guid|cluster_uuid)>)[^<]*(</\2>)", _ANY_CASE
)
_SERIAL_IN_LINE = re.compile(
    r"\b(serial ?number|serial|s/n|wwn|wwid)"
    # NVIDIA's driver says `GPU serial number is 0324…` of a card that fell off the bus.
    r"([ \t]*[:=][ \t]*|[ \t]+is[ \t]+|[ \t]+(?=[0-9a-f]{2}-|\d{8}))"
    r"(?!removed)(?=[^\s,;<]*\d)([^\s,;<]*[^\s,;<.])",
    _ANY_CASE,
)
# What an unset field says is a fact, and not personal.
_SAYS_NOTHING = re.compile(
    r"(?:\[?n/a\]?|none|not (?:specified|supported|provided|available)|unknown|0+|no .*)\s*",
    _ANY_CASE,
)
# `nvidia-smi -q` gives the command line of a process as its name, `nvidia-smi` its end.
_PROCESS_NAME = re.compile(r"^([ \t]+Name[ \t]+: )(\S+).*$", re.MULTILINE)
_PROCESS_XML = re.compile(r"(<process_name>)([^<\s]*)[^<]*(</process_name>)")
_PROCESS_ROW = re.compile(
    r"^(\|[ \t]+\d+(?:[ \t]+\S+[ \t]+\S+)?[ \t]+\d+[ \t]+[CGM+]+[ \t]+)(\S[^\n|]*?)"
    r"([ \t]+\d+MiB[ \t]*\|)$",
    re.MULTILINE,
)
_SPECIMEN_FILES = re.compile(
    r"(?:(?:.*_)?(?:serial|uuid|asset_tag|wwid)|serial_number|machine-id|boot_id|hostname|environ)"
)


def scrub(text: str, secrets: Collection[str] = ()) -> str:
    """`text` without serial numbers, UUIDs, addresses, home folders and what processes were given.

    `secrets` are names that only this machine knows to be personal: of the host, of its users.
    """
    text = _NAMED.sub(_hide_value, text)
    text = _XML_NAMED.sub(rf"\1{GONE}\3", text)
    text = _SERIAL_IN_LINE.sub(rf"\1\2{GONE}", text)
    text = _PROCESS_NAME.sub(lambda m: m[1] + program(m[2]), text)
    text = _PROCESS_XML.sub(lambda m: m[1] + program(m[2]) + m[3], text)
    text = _PROCESS_ROW.sub(_hide_row, text)
    text = _HOME.sub(lambda m: f"~/{program(m[0])}" if m[0].count("/") > 2 else "~", text)
    for pattern in (_UUID, _EMAIL, _MAC, _IPV6, _IPV4, _LONG_HEX):
        text = pattern.sub(GONE, text)
    for secret in sorted(set(secrets), key=lambda name: (-len(name), name)):
        if len(secret) >= _SECRET_MIN and secret.lower() not in _EVERYDAY:
            text = re.sub(rf"(?<![A-Za-z0-9_]){re.escape(secret)}(?![A-Za-z0-9_])", GONE, text)
    return text


def scrub_file(path: str, text: str, secrets: Collection[str] = ()) -> str:
    """The text of one file; nothing of a file that holds one specimen's number and no more."""
    name = path.rpartition("/")[2]
    return "" if _SPECIMEN_FILES.fullmatch(name) else scrub(text, secrets)


def program(command: str) -> str:
    """The program's own name in a path or a command line: `python3`."""
    word = command.split(maxsplit=1)[0] if command.strip() else command
    return word.rpartition("/")[2] or word


def _hide_value(line: re.Match[str]) -> str:
    if _SAYS_NOTHING.fullmatch(line[2]):
        return line[0]
    # To the reader of `nvidia-smi -q` the card has no UUID then, not one named so.
    return line[1] + ("N/A" if "gpu uuid" in line[1].lower() else GONE)


def _hide_row(row: re.Match[str]) -> str:
    return row[1] + program(row[2]).ljust(len(row[2])) + row[3]

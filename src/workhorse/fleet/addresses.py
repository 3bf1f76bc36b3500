"""Addresses of this machine and of the head: which one, whether it answers, which port is free."""

import fcntl
import ipaddress
import re
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress

from workhorse.errors import EXIT_USAGE, AppError
from workhorse.fleet.ray_start import HEAD_PORT
from workhorse.text import Text

REACH_WITHIN_S = 10.0
# Nobody has it (RFC 5737): which interface leads outside is asked, nothing is sent.
SOMEWHERE = "192.0.2.1"
SIOCGIFADDR, SIOCGIFNETMASK = 0x8915, 0x891B  # linux/sockios.h
_HEAD = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:]+)\]|(?P<host>[A-Za-z0-9._-]+))(?::(?P<port>\d+))?")


def head_address(words: str) -> str:
    """`IP:port` of the head from what a person types: a name or an address, with or without port.

    Raises AppError: it is neither, or the name means nothing here.
    """
    match = _HEAD.fullmatch(words.strip())
    port = int(match["port"] or HEAD_PORT) if match else 0
    if match is None or not 0 < port <= 65535:
        raise AppError(
            Text(f"{words!r} is no address of a head.", f"{words!r} 不是主节点的地址。"),
            Text(
                "Give its name or IP, as `workhorse fleet init` told it: 10.0.0.1 or 10.0.0.1:6379",
                "请填写 `workhorse fleet init` 给出的名称或 IP：10.0.0.1 或 10.0.0.1:6379",
            ),
            exit_code=EXIT_USAGE,
        )
    host = match["six"] or match["host"]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise AppError(
            Text(f"{host} is not known here: {error}.", f"本机无法解析 {host}：{error}。"),
            Text("Give the IP of the head.", "请改用主节点的 IP 地址。"),
        ) from error
    address = min(found, key=lambda one: one[0] != socket.AF_INET)[4][0]
    return joined(str(address), port)


def joined(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parted(address: str) -> tuple[str, int]:
    """Host and port of `host:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def refuse_silent_head(address: str) -> None:
    """An AppError when nobody takes a connection at the head's address."""
    try:
        with socket.create_connection(parted(address), timeout=REACH_WITHIN_S):
            return
    except OSError as error:
        raise AppError(
            Text(
                f"The head does not answer at {address}: {error.strerror or error}.",
                f"主节点 {address} 没有应答：{error.strerror or error}。",
            ),
            Text(
                "Does it run (`workhorse fleet status` there), and does its firewall let this "
                "machine in? docs/fleet.md lists the ports.",
                "请确认主节点在运行（在主节点上执行 `workhorse fleet status`），"
                "且防火墙放行本机；端口见 docs/fleet.zh.md。",
            ),
        ) from error


def own_address(towards: str = SOMEWHERE) -> str | None:
    """The IP of this machine from which `towards` is reached; None: there is no way."""
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))  # of a datagram socket: nothing is sent
        return str(probe.getsockname()[0])
    return None


def refuse_foreign_address(address: str) -> None:
    """An AppError when an address is none of this machine's."""
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((address, 0))
    except OSError as error:
        raise AppError(
            Text(f"{address} is no address of this machine.", f"{address} 不是本机的地址。"),
            Text("`ip -brief address` lists them.", "用 `ip -brief address` 查看本机地址。"),
            exit_code=EXIT_USAGE,
        ) from error


def network_of(address: str) -> str | None:
    """The network in which this machine has the address, such as 10.0.0.0/24; None: not known."""
    for _, name in socket.if_nameindex():
        request = struct.pack("256s", name.encode()[:15])
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            here = fcntl.ioctl(asked, SIOCGIFADDR, request)[20:24]
            if socket.inet_ntoa(here) == address:
                mask = socket.inet_ntoa(fcntl.ioctl(asked, SIOCGIFNETMASK, request)[20:24])
                return str(ipaddress.ip_network(f"{address}/{mask}", strict=False))
    return None


def taken_ports(ports: Iterable[int]) -> tuple[int, ...]:
    """Those on which somebody listens here already."""
    taken = []
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # What a connection that has ended leaves for a minute does not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                taken.append(port)
    return tuple(taken)

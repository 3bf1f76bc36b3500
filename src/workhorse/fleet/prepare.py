"""What has to be right before a node is started, and what it is started with."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from workhorse import __version__
from workhorse.config import Places
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.fleet.addresses import (
    head_address,
    joined,
    own_address,
    parted,
    refuse_foreign_address,
    refuse_silent_head,
    taken_ports,
)
from workhorse.fleet.connect import refuse_without_ray
from workhorse.fleet.greeting import ask_head, refuse_unlike
from workhorse.fleet.keeper import already_member
from workhorse.fleet.member import host_name, read_member, temp_dir, token_path
from workhorse.fleet.node_facts import (
    HTTP_PORT_LABEL,
    VERSION,
    label_value,
    labels_of,
    resources_of,
)
from workhorse.fleet.ray_start import HEAD_PORT, HTTP_PORT, NodeStart, Ports, port_twice
from workhorse.fleet.secret import new_token, read_token, write_token
from workhorse.machine.probe import probe
from workhorse.records import Machine
from workhorse.text import Text

Probe = Callable[[], Machine]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asked for; None: left to us."""

    head: str | None  # whom to join; None: be the head
    address: str | None = None  # IP of this machine for the others
    name: str | None = None
    port: int = HEAD_PORT  # the first of nine
    http_port: int | None = None
    metrics_port: int | None = None
    stats_port: int | None = None
    token_file: Path | None = None


def prepared(wish: Wish, where: Places, *, look: Probe | None = None) -> NodeStart:
    """What the node is started with, all that can be checked before checked; blocks, seconds.

    Raises AppError: no Ray, no token or a wrong one, a silent head, other versions there, a taken
    port, an address that is none of this machine's, a node that runs here already.
    """
    refuse_without_ray()
    member = read_member(where)
    if member is not None and member.lives():
        raise already_member(member)
    ports = ports_of(wish)
    token_file = token_of(wish, where)
    folder = private_folder(temp_dir(read_token(token_file)))
    name = name_of(wish.name)
    if wish.head is None:
        address = own(wish.address)
        head, greeting = joined(address, ports.head), None
    else:
        head = head_address(wish.head)
        refuse_silent_head(head)
        greeting = ask_head(head, str(token_file), str(folder))
        address = own(wish.address, towards=parted(head)[0])
        refuse_unlike(greeting, name, address)
        ports = replace(ports, http=greeting.http_port)
    refuse_twice(ports, head=wish.head is None)
    refuse_taken(ports, head=wish.head is None)
    token_file = kept_token(token_file, where)
    machine = (look or (lambda: probe(measure_s=0)))()
    return NodeStart(
        name=name,
        address=head,
        node_address=address,
        head=wish.head is None,
        token_file=str(token_file),
        temp_dir=str(folder),
        ports=ports,
        resources=resources_of(machine),
        labels=labels_of(machine, name)
        | {VERSION: label_value(__version__), HTTP_PORT_LABEL: str(ports.http)},
    )


def ports_of(wish: Wish) -> Ports:
    """The ports of a node: nine in a row from the one that was named, and those of the proxy."""
    first = wish.port
    if not 0 < first <= 65535 - 8:
        raise AppError(
            Text(f"{first} is no first of nine ports.", f"{first} 不能作为九个连续端口的起点。"),
            Text("Take one between 1024 and 65527.", "请选用 1024 到 65527 之间的端口。"),
            exit_code=EXIT_USAGE,
        )
    for option, number in (
        ("--http-port", wish.http_port),
        ("--metrics-port", wish.metrics_port),
        ("--stats-port", wish.stats_port),
    ):
        if number == 0:
            raise AppError(
                Text(
                    f"{option} cannot be 0: other machines have to know the port.",
                    f"{option} 不能为 0：其他机器需要知道该端口。",
                ),
                Text("Take one between 1024 and 65535.", "请选用 1024 到 65535 之间的端口。"),
                exit_code=EXIT_USAGE,
            )
    plain = Ports()
    return Ports(
        head=first,
        node=first + 1,
        objects=first + 2,
        agent_grpc=first + 3,
        agent_http=first + 4,
        environments=first + 5,
        ray_metrics=first + 6,
        head_metrics=first + 7,
        waiting=first + 8,
        http=HTTP_PORT if wish.http_port is None else wish.http_port,
        proxy_metrics=plain.proxy_metrics if wish.metrics_port is None else wish.metrics_port,
        proxy_stats=plain.proxy_stats if wish.stats_port is None else wish.stats_port,
    )


def token_of(wish: Wish, where: Places) -> Path:
    """The file with the token, read and found good; the head makes one where there is none."""
    if wish.token_file is not None:
        path = wish.token_file.absolute()
    elif wish.head is None:
        path = token_path(where)
        if not path.exists():
            write_token(path, new_token())
    else:
        raise AppError(
            Text("Joining needs the fleet's token.", "加入集群需要令牌。"),
            Text(
                "Copy the file that `workhorse fleet init` named on the head to this machine, and "
                "add --token-file FILE",
                "请把主节点上 `workhorse fleet init` 显示的令牌文件复制到本机，"
                "再加上 --token-file 文件",
            ),
            exit_code=EXIT_USAGE,
        )
    read_token(path)
    return path


def kept_token(path: Path, where: Places) -> Path:
    """Our own copy of the token: Ray reads it whenever it starts a process."""
    own_path = token_path(where).absolute()
    if path != own_path:
        write_token(own_path, read_token(path))
    return own_path


def private_folder(path: Path) -> Path:
    """The folder for sockets, for this user alone; an AppError when it is another's."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except FileExistsError as error:
        raise AppError(
            Text(f"{path} is there already and is no folder.", f"{path} 已存在，且不是目录。"),
            Text("Remove it.", "请将其删除。"),
        ) from error
    except OSError as error:
        raise AppError(
            Text(
                f"The folder for sockets, {path}, cannot be made: {error.strerror}.",
                f"无法创建套接字目录 {path}：{error.strerror}。",
            ),
            Text(
                f"Make room in {path.parent}, and make it writable.",
                f"请确保 {path.parent} 可写且有空间。",
            ),
        ) from error
    if found.st_uid != os.getuid() or path.is_symlink() or found.st_mode & 0o077:
        raise AppError(
            Text(
                f"{path} is there already and can be used by others.",
                f"{path} 已存在，且可被他人使用。",
            ),
            Text("Remove it.", "请将其删除。"),
        )
    return path


def name_of(name: str | None) -> str:
    """The node's name: the one that was given, else the host's."""
    if name is None:
        return host_name()
    if label_value(name) != name or not name:
        raise AppError(
            Text(f"{name!r} is no name for a node.", f"{name!r} 不能用作节点名。"),
            Text(
                "Use at most 63 letters, digits, dots and dashes.",
                "请使用最多 63 个字母、数字、点和连字符。",
            ),
            exit_code=EXIT_USAGE,
        )
    return name


def own(asked: str | None, *, towards: str | None = None) -> str:
    """The IP by which the others reach this machine."""
    if asked is not None:
        refuse_foreign_address(asked)
        return asked
    found = own_address() if towards is None else own_address(towards)
    if found is None:
        raise AppError(
            Text(
                "This machine has no way to other machines: there is no default route.",
                "本机没有默认路由，无法确定对外地址。",
            ),
            Text(
                "Name its IP in the network of the nodes: --address IP",
                "请用 --address 指定本机在集群网络中的 IP。",
            ),
        )
    return found


def refuse_twice(ports: Ports, *, head: bool) -> None:
    """An AppError when a port that was named is one that the node needs for something else."""
    twice = port_twice(ports, head=head)
    if twice is not None:
        raise AppError(
            Text(
                f"Port {twice} would be taken twice by this node.",
                f"本节点会两次使用端口 {twice}。",
            ),
            Text(
                "Name other ports; docs/fleet.md lists those that a node takes.",
                "请改用其他端口；节点使用的端口见 docs/fleet.zh.md。",
            ),
            exit_code=EXIT_USAGE,
        )


def refuse_taken(ports: Ports, *, head: bool) -> None:
    """An AppError when somebody listens on a port that the node needs."""
    row = [ports.node, ports.objects, ports.agent_grpc, ports.agent_http]
    row += [ports.environments, ports.ray_metrics]
    if head:
        row += [ports.head, ports.head_metrics, ports.waiting]
    proxy = {
        ports.http: "--http-port",
        ports.proxy_metrics: "--metrics-port",
        ports.proxy_stats: "--stats-port",
    }
    taken = taken_ports([*row, *proxy])
    if not taken:
        return
    option = proxy.get(taken[0], "--port")
    if option == "--http-port" and not head:
        step = Text(
            "Stop what listens there: all nodes of a fleet serve on the same port.",
            "请停止占用该端口的程序：集群所有节点使用同一个 HTTP 端口。",
        )
    else:
        step = Text(
            f"Take other ports with {option}, or stop what listens there (ss -ltnp).",
            f"用 {option} 改用其他端口，或停止占用端口的程序（ss -ltnp）。",
        )
    listed = ", ".join(map(str, taken))
    raise AppError(
        Text(f"Somebody listens on port {listed} already.", f"端口 {listed} 已被占用。"), step
    )

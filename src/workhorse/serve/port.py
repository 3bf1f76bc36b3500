"""A port that cannot be had: who holds it, and what to do."""

from workhorse.errors import EXIT_NO, AppError
from workhorse.machine.port_holder import PortHolder, find_port_holder
from workhorse.text import Text

__all__ = ["PortHolder", "cannot_listen", "find_port_holder", "port_taken"]


def port_taken(host: str, port: int, holder: PortHolder | None) -> AppError:
    """The error for a port that somebody else listens on."""
    who_en = f"process {holder.pid} ({holder.command})" if holder else "another process"
    who_zh = f"进程 {holder.pid}（{holder.command}）" if holder else "另一个进程"
    return AppError(
        Text(
            f"Port {port} on {host} is taken: {who_en} listens on it.",
            f"{host} 的端口 {port} 已被{who_zh}占用。",
        ),
        Text(
            "Stop that process, or choose another port; `--port 0` takes a free one.",
            "请停止该进程，或换一个端口；`--port 0` 会自动选择空闲端口。",
        ),
        speaker="gateway",
        exit_code=EXIT_NO,
    )


def cannot_listen(host: str, port: int, reason: str) -> AppError:
    """The error for an address that cannot be listened on at all."""
    return AppError(
        Text(
            f"Cannot listen on {host} port {port}: {reason}.",
            f"无法监听 {host} 的端口 {port}：{reason}。",
        ),
        Text(
            "Choose a port above 1023, such as `--port 8080`.",
            "请选择大于 1023 的端口，例如 `--port 8080`。",
        ),
        speaker="gateway",
    )

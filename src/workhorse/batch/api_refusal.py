"""What OpenAI's API of files and batches refuses, in its words where its clients look for them."""

from workhorse.errors import AppError
from workhorse.serve.refusal import NotFound, NotTaken
from workhorse.text import Text


def wrong(said: str, param: str | None) -> NotTaken:
    """A request that is not as it has to be; `param` is what is wrong with it."""
    return NotTaken(
        Text(said, f"请求有误：{said}"),
        Text("Correct it and send it again.", "请更正后重新发送。"),
        speaker="gateway",
        param=param,
    )


def no_file(file_id: str, param: str = "id") -> NotFound:
    """There is no such file, or it is somebody else's."""
    shown = file_id[:80]
    return NotFound(
        Text(f"No such File object: {shown}", f"没有该文件：{shown}"),
        Text("GET /v1/files lists those there are.", "GET /v1/files 可列出现有文件。"),
        speaker="gateway",
        param=param,
    )


def no_batch(batch_id: str) -> NotFound:
    """There is no such batch, or it is somebody else's."""
    shown = batch_id[:80]
    return NotFound(
        Text(f"No batch found with id '{shown}'.", f"没有编号为 {shown} 的批处理。"),
        Text("GET /v1/batches lists those there are.", "GET /v1/batches 可列出现有批处理。"),
        speaker="gateway",
        param="id",
    )


def full(limit_gib: float) -> NotTaken:
    """A file for which there is no room within the limits of the settings."""
    return NotTaken(
        Text(
            f"The files would take more than {limit_gib:g} GiB.",
            f"文件总大小将超过 {limit_gib:g} GiB。",
        ),
        Text(
            "Delete files that are no longer needed; who runs the service sets the limit in "
            "`[batch]`.",
            "请删除不再需要的文件；上限由服务的管理员在 `[batch]` 中设置。",
        ),
        speaker="gateway",
    )


def kept_elsewhere(pid: int | None) -> AppError:
    """Another service has the files and batches of this data folder."""
    who = Text("", "") if pid is None else Text(f" (process {pid})", f"（进程 {pid}）")
    return AppError(
        Text(
            f"Files and batches are with another service of the same data folder{who.en}.",
            f"文件与批处理由同一数据目录的另一个服务管理{who.zh}。",
        ),
        Text(
            "Ask that one, or give this service a folder of its own with WORKHORSE_HOME.",
            "请访问那个服务，或用 WORKHORSE_HOME 为本服务指定单独的目录。",
        ),
        speaker="gateway",
    )

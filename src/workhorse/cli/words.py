"""Words of the commands in both languages."""

from workhorse.text import Text

# The environment variables that are read; every page of commands lists them.
VARIABLES: dict[str, Text] = {
    "WORKHORSE_HOME": Text(
        "the folder for models, measurements and logs; else `workhorse` under `XDG_DATA_HOME`",
        "存放模型、测量记录和日志的目录；默认是 `XDG_DATA_HOME` 下的 `workhorse`",
    ),
    "WORKHORSE_LANG": Text(
        "language of the output, `en` or `zh`; else the locale's",
        "输出语言，`en` 或 `zh`；默认跟随系统区域设置",
    ),
    "WORKHORSE_API_KEY": Text(
        "the key that `bench`, `explain` and `batch` send to a service that wants one",
        "`bench`、`explain`、`batch` 访问需要密钥的服务时使用的密钥",
    ),
    "HF_ENDPOINT": Text(
        "a mirror of Hugging Face that `hf:owner/name` is read from",
        "读取 `hf:所有者/名称` 所用的 Hugging Face 镜像",
    ),
    "HF_TOKEN": Text(
        "a token for gated and private models; it is sent to that hub alone",
        "用于受限或私有模型的令牌，只发送给该站点",
    ),
    "HF_HUB_OFFLINE": Text(
        "1: `pull` uses no network, as with --offline", "设为 1：`pull` 不使用网络，同 --offline"
    ),
    "MODELSCOPE_ENDPOINT": Text(
        "the address that `ms:owner/name` is read from",
        "读取 `ms:所有者/名称` 所用的地址",
    ),
}

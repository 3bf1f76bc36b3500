"""Labels of the tables in both languages."""

from workhorse.text import Text

SETTINGS = {
    "device": Text("device", "设备"),
    "context": Text("context", "上下文"),
    "slots": Text("slots", "槽位"),
    "kv": Text("KV type", "KV 类型"),
    "flash attention": Text("flash attention", "flash attention"),
    "batch": Text("batch", "批大小"),
    "threads": Text("threads", "线程"),
    "pages": Text("pages", "内存页"),
    "spin": Text("spinning", "自旋"),
}
ITEMS = {
    "weights": Text("weights", "权重"),
    "kv": Text("KV cache", "KV 缓存"),
    "compute": Text("compute buffers", "计算缓冲"),
    "output": Text("output buffer", "输出缓冲"),
    "runtime": Text("runtime", "运行时"),
    "prompt cache": Text("prompt cache", "提示词缓存"),
}
DEVICES = {"RAM": Text("main memory", "内存")}
BASES = {
    "measured": Text("measured here", "本机实测"),
    "header": Text("model header", "模型文件头"),
    "engine": Text("engine's dry run", "引擎试算"),
    "twin": Text("twin", "缩小模型实测"),
    "learned": Text("learned here", "本机学习"),
    "datasheet": Text("datasheet", "规格书"),
    "published": Text("published", "公开数据"),
    "estimated": Text("estimated", "估算"),
}

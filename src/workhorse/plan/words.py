"""What the parts of a plan are called in tables and on the dashboard, in both languages."""

from workhorse.text import Text

SETTINGS = {
    "engine": Text("engine", "引擎"),
    "engines": Text("engines", "引擎数"),
    "device": Text("device", "设备"),
    "layer split": Text("layers on each card", "各卡层数"),
    "experts in RAM": Text("experts in main memory", "内存中的专家"),
    "tables": Text("tables", "嵌入表"),
    "context": Text("context", "上下文"),
    "slots": Text("slots", "槽位"),
    "kv": Text("KV type", "KV 类型"),
    "flash attention": Text("flash attention", "flash attention"),
    "batch": Text("batch", "批大小"),
    "reranking": Text("reranking", "重排序"),
    "projector": Text("projector", "投影器"),
    "threads": Text("threads", "线程"),
    "prompt cache": Text("prompts kept", "保留的提示词"),
    "pages": Text("pages", "内存页"),
    "spin": Text("spinning", "自旋"),
    "dtype": Text("computes in", "计算类型"),
    "pool": Text("pool of KV", "KV 池"),
    "attention": Text("attention", "注意力实现"),
    "compilation": Text("compilation", "编译"),
    # What `tune` has changed.
    "tuned": Text("tuned", "调优"),
    "quant": Text("quant", "量化"),
    "cpus": Text("CPUs", "CPU 集合"),
    "numa": Text("memory nodes", "内存节点"),
    "load": Text("load mode, pages", "加载方式与内存页"),
    "micro-batch": Text("micro-batch", "微批大小"),
    "gpu layers": Text("layers on cards", "显卡上的层数"),
    "expert layers": Text("layers with experts in main memory", "专家在内存中的层数"),
    "split": Text("split", "切分方式"),
    "drafts": Text("drafts", "草拟"),
}
ITEMS = {
    "weights": Text("weights", "权重"),
    "tables": Text("tables read by row", "按行读取的表"),
    "kv": Text("KV cache", "KV 缓存"),
    "state": Text("recurrent state", "循环状态"),
    "compute": Text("compute buffers", "计算缓冲"),
    "output": Text("output buffer", "输出缓冲"),
    "runtime": Text("runtime", "运行时"),
    "prompt cache": Text("prompt cache", "提示词缓存"),
    "checkpoints": Text("context checkpoints", "上下文检查点"),
    "projector": Text("projector (images, sound)", "投影器（图像、声音）"),
}
# What the weights of a line are for; each follows the word for weights.
PARTS = {
    "attention": Text("attention", "注意力"),
    "recurrence": Text("recurrence", "循环层"),
    "feed-forward": Text("feed-forward", "前馈"),
    "experts": Text("experts", "专家"),
    "shared experts": Text("shared experts", "共享专家"),
    "norms and others": Text("norms and others", "归一化及其他"),
    "embedding": Text("embedding", "词嵌入"),
    "output head": Text("output head", "输出头"),
    "tables": Text("tables read by row", "按行读取的表"),
}
DEVICES = {"RAM": Text("main memory", "内存"), "disk": Text("disk", "磁盘")}
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

"""Typed reading of a header's metadata: a wrong type or size is an AppError that names the key."""

from workhorse.models.header import Header, Skipped, Value
from workhorse.models.refusals import damaged, shown

COUNT_MAX = 2**32 - 1  # the engine reads sizes and counts as uint32


class Metadata:
    """The keys of one header; `{arch}` in a key stands for the model's architecture."""

    def __init__(self, header: Header) -> None:
        self.name = header.name
        self._values = header.values

    @property
    def architecture(self) -> str:
        """The name of the model's architecture, such as `llama`."""
        architecture = self.text("general.architecture")
        if not architecture:
            raise damaged(self.name, "it names no architecture", "没有注明模型架构")
        return architecture

    def text(self, key: str) -> str | None:
        """A text; None when the key is not there."""
        value = self._value(key)
        if value is None or isinstance(value, str):
            return value
        raise damaged(self.name, f"{shown(key)} is not a text", f"{shown(key)} 不是文本")

    def count(self, key: str) -> int | None:
        """A number from 0 to 2³² − 1; None when the key is not there."""
        value = self._value(key)
        return None if value is None else self._counted(key, value)

    def needed_count(self, key: str) -> int:
        """A number without which the model cannot be planned for: at least 1."""
        value = self.count(key)
        if not value:
            raise damaged(self.name, f"{self._full(key)} is missing", f"缺少 {self._full(key)}")
        return value

    def counts(self, key: str, layers: int) -> tuple[int, ...] | None:
        """One number a layer, from a list or from a number that holds for all of them."""
        value = self._value(key)
        if value is None:
            return None
        if not isinstance(value, tuple):
            return (self._counted(key, value),) * layers
        # The engine refuses other lengths too (`get_key_or_arr`, src/llama-model-loader.cpp).
        if len(value) != layers:
            raise damaged(
                self.name,
                f"{self._full(key)} has {len(value)} entries for {layers} layers",
                f"{self._full(key)} 有 {len(value)} 项，而模型有 {layers} 层",
            )
        return tuple(self._counted(key, entry) for entry in value)

    def counts_or_more(self, key: str, layers: int) -> tuple[int, ...] | None:
        """One number a layer from a list that may go on after the last."""
        value = self._value(key)
        if isinstance(value, tuple) and len(value) > layers:
            return tuple(self._counted(key, entry) for entry in value[:layers])
        return self.counts(key, layers)

    def numbers(self, key: str) -> tuple[int, ...]:
        """A list of counts of any length; () when the key is not there or not a list."""
        value = self._value(key)
        return tuple(self._counted(key, n) for n in value) if isinstance(value, tuple) else ()

    def flags(self, key: str) -> tuple[bool, ...] | None:
        """A list of yes and no; None when the key is not there or not a list."""
        value = self._value(key)
        return tuple(bool(entry) for entry in value) if isinstance(value, tuple) else None

    def entries(self, key: str) -> int | None:
        """How many entries a list has; None when the key is not there or not a list."""
        value = self._value(key)
        if isinstance(value, Skipped):
            return value.count
        return len(value) if isinstance(value, tuple) else None

    def _full(self, key: str) -> str:
        return shown(key.replace("{arch}", self.architecture))

    def _value(self, key: str) -> Value | None:
        if "{arch}" in key:
            key = key.replace("{arch}", self.architecture)
        return self._values.get(key)

    def _counted(self, key: str, value: Value) -> int:
        # Some converters wrote counts as true or false (`expert_used_count` of old files did).
        if isinstance(value, int) and 0 <= value <= COUNT_MAX:
            return int(value)
        raise damaged(
            self.name, f"{self._full(key)} is not a count", f"{self._full(key)} 不是计数值"
        )

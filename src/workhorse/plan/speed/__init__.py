"""What a plan promises in tokens a second, and the ceiling that the memory sets."""

from workhorse.plan.speed.device import Reader, best_bandwidth, card_reader
from workhorse.plan.speed.explain import Explained, explain, explain_learning
from workhorse.plan.speed.forecast import forecast
from workhorse.plan.speed.learned import (
    OTHER_MODEL_BAND,
    SAME_MODEL_BAND,
    Experience,
    Setup,
    learned,
    same_model,
    setup_for,
)
from workhorse.plan.speed.prefill import prefill
from workhorse.plan.speed.reads import (
    PROTOCOL_DEPTH_TOKENS,
    attention_work,
    bytes_per_token,
    bytes_read,
    kv_read_bytes,
    weights_read,
)

__all__ = [
    "OTHER_MODEL_BAND",
    "PROTOCOL_DEPTH_TOKENS",
    "SAME_MODEL_BAND",
    "Experience",
    "Explained",
    "Reader",
    "Setup",
    "attention_work",
    "best_bandwidth",
    "bytes_per_token",
    "bytes_read",
    "card_reader",
    "explain",
    "explain_learning",
    "forecast",
    "kv_read_bytes",
    "learned",
    "prefill",
    "same_model",
    "setup_for",
    "weights_read",
]

"""Running models: transformers with its rotary modules patched, llama.cpp in its own process, servers by protocol."""

from .engine import Engine, LogProbs, Output, Progress

__all__ = ["Engine", "LogProbs", "Output", "Progress"]

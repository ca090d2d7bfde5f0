"""Engines, which run models: transformers with patched rotary modules, llama.cpp in its own process, and servers."""

from .engine import Engine, LogProbs, Output, Progress, TokenLosses

__all__ = ["Engine", "LogProbs", "Output", "Progress", "TokenLosses"]

"""The page of `ropeconv ui`, which is a Space as well. `serve` and `serve_space` import Gradio when they run."""

from __future__ import annotations

from .access import write_redirect
from .serving import serve, serve_space

__all__ = ["serve", "serve_space", "write_redirect"]

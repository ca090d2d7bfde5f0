"""Runtimes: what each of them does with every family, and how that is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from ...bake.matrix import matrix
from ..forms import RuntimesForm
from ..front import Front
from ..matrix import shown
from .parts import answer, heading
from .wiring import Page


def build(front: Front, page: gr.Blocks) -> None:
    """The components of the page."""
    heading("Runtimes", "What every runtime computes of every model family, and how that is known.")
    cells = matrix()
    families = sorted({cell.family for cell in cells})
    runtimes = list(dict.fromkeys(cell.verdict.runtime.partition("@")[0] for cell in cells))
    with gr.Row():
        family = gr.Dropdown([("all", ""), *families], value="", label="Family", elem_id="family")
        runtime = gr.Dropdown([("all", ""), *runtimes], value="", label="Runtime", elem_id="runtime")
    fields = {"family": family, "runtime": runtime}
    made = Page(front, RuntimesForm, fields, answer())

    def answers(form: Any, request: gr.Request, token: str) -> Iterator[str]:
        yield shown(form)

    made.on([one.change for one in fields.values()], answers, last=True)
    made.from_address(page, answers, lambda form: True)

"""Inspect: what a model is."""

from __future__ import annotations

import gradio as gr

from ..forms import InspectForm
from ..front import Front
from .parts import answer, heading, model
from .wiring import Page


def build(front: Front, page: gr.Blocks) -> None:
    """The components of the page."""
    heading("Inspect", "The RoPE of a model, what is wrong with its settings, and which runtimes read it right.")
    fields = model(front.rules)
    button = gr.Button("Inspect", variant="primary", elem_id="ask")
    made = Page(front, InspectForm, fields, answer())
    made.ask("inspect", [button.click, fields["source"].submit])
    made.from_address(page, made.task("inspect"), lambda form: bool(form.source))

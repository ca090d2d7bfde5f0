"""Results: what is known of an output."""

from __future__ import annotations

import gradio as gr

from ..forms import ResultsForm
from ..front import Front
from .parts import answer, heading, model
from .wiring import Page


def build(front: Front, page: gr.Blocks) -> None:
    """The components of the page."""
    heading("Results", "How an output was made, whether runtimes compute it, and what it does to the model.")
    fields = model(front.rules, "receipt (ropeconv.json), result of eval or validate, or GGUF file")
    button = gr.Button("Show", variant="primary", elem_id="ask")
    made = Page(front, ResultsForm, fields, answer())
    made.ask("results", [button.click, fields["source"].submit])
    made.from_address(page, made.task("results"), lambda form: bool(form.source))

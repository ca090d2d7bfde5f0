"""Compare: the methods that reach a length."""

from __future__ import annotations

import gradio as gr

from ..forms import CompareForm
from ..front import Front
from .parts import answer, heading, model
from .wiring import Page


def build(front: Front, page: gr.Blocks) -> None:
    """The components of the page."""
    heading("Compare", "The methods that reach a length, with numbers that need no run of the model, and their curves.")
    fields = model(front.rules)
    context = gr.Textbox(
        label="Context", info="A length such as 128k, or a factor such as 4", max_lines=1, elem_id="context"
    )
    with gr.Accordion("Sort by a measurement of this model", open=False):
        measured = gr.File(label="The file of `ropeconv eval -o`", file_types=[".json"], height=140)
    fields |= {"context": context, "measured": measured}
    button = gr.Button("Compare", variant="primary", elem_id="ask")
    made = Page(front, CompareForm, fields, answer())
    made.ask("compare", [button.click, fields["source"].submit, context.submit])
    made.from_address(page, made.task("compare"), lambda form: bool(form.source and form.context))

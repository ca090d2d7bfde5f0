"""Bake: a plan, and then a folder, a GGUF file or a publication."""

from __future__ import annotations

from typing import get_args

import gradio as gr

from ...encode import all_encodings
from ...encode.target import Format
from ...export import exported
from ...export.quantise import FTYPES
from ...runtimes import runtimes
from ...runtimes.gguf_readers import reader_names
from ..baking import METHODS
from ..forms import BakeForm
from ..front import Front
from .login import lead_back, login
from .parts import answer, heading, model
from .wiring import Page

OUTTYPES = tuple(dict.fromkeys(("auto", *exported.OUTTYPES, *FTYPES)))
LOGIN = "Publishing needs a login: Hugging Face then asks whether this page may create repositories of yours."


def build(front: Front, page: gr.Blocks) -> None:
    """The components of the page."""
    public = front.rules.public
    heading("Bake", "Plan an output first; then write or publish it. Weights that do not change are not moved.")
    fields = model(front.rules)
    with gr.Row():
        fields["method"] = gr.Dropdown([("choose", ""), *METHODS], value="", label="Method", elem_id="method")
        fields["value"] = gr.Textbox(
            label="Its value", info="A factor (4) or a length (128k)", max_lines=1, elem_id="value"
        )
    with gr.Accordion("Settings of the method, and recipes", open=False):
        fields["settings"] = gr.Textbox(
            label="Settings", info="name=value, with commas: beta_fast=16, context=65536, attention_factor=1.1",
            max_lines=1, elem_id="settings",
        )  # fmt: skip
        fields["recipe"] = gr.File(label="A recipe in place of the method", file_types=[".json"], height=140)
    with gr.Accordion("How it is written", open=False):
        with gr.Row():
            fields["to"] = gr.Dropdown(
                [("as the model", ""), *get_args(Format)], value="", label="Format", elem_id="to"
            )
            fields["outtype"] = gr.Dropdown(
                [("as stored", ""), *OUTTYPES], value="", label="Type of GGUF weights", elem_id="outtype"
            )
            fields["encoding"] = gr.Dropdown(
                [("auto", ""), *all_encodings()], value="", label="Encoding", elem_id="encoding"
            )
        names = [*dict.fromkeys(row.name for row in runtimes()), *reader_names()]
        fields["runtimes"] = gr.Dropdown(
            names, value=[], multiselect=True, label="Runtimes that must read it exactly", elem_id="runtimes"
        )
        fields["replace"] = gr.Checkbox(False, label="Start a scaled model from its unscaled RoPE", elem_id="replace")
    if not public:
        fields["out"] = gr.Textbox(
            label="Folder or GGUF file", info="Empty: here, named after model and method", max_lines=1, elem_id="out"
        )
    with gr.Row():
        fields["repo_id"] = gr.Textbox(
            label="Repository", info="owner/name, to publish", max_lines=1, elem_id="repo_id"
        )
        fields["private"] = gr.Checkbox(False, label="Private", elem_id="private")
        fields["exist_ok"] = gr.Checkbox(False, label="Commit to one that exists (--exist-ok)", elem_id="exist_ok")
    if public:
        gr.Markdown(LOGIN)
        button = login()
    with gr.Row():
        planning = gr.Button("Plan", variant="primary", elem_id="plan")
        writing = gr.Button("Write", visible=not public, elem_id="write")
        publishing = gr.Button("Publish", elem_id="publish")
        cancel = gr.Button("Cancel", variant="stop", elem_id="cancel")
    fields |= {"out": gr.State("")} if public else {}
    made = Page(front, BakeForm, fields, answer())
    if public:
        lead_back(button, made, page)
    made.ask("plan", [planning.click, fields["source"].submit, fields["value"].submit])
    if not public:
        made.ask("write", [writing.click], baking=True)
    made.ask("publish", [publishing.click], baking=True)

    def stop(request: gr.Request) -> None:
        front.stop(request.session_hash or "")

    cancel.click(stop, None, None, queue=False, api_visibility="private", show_progress="hidden")
    made.from_address(page, made.task("plan"), lambda form: bool(form.source and form.method))

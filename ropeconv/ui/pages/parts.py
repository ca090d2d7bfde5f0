"""Parts that several pages have."""

from __future__ import annotations

from typing import Any

import gradio as gr

from ..rules import Rules

SOURCE = "owner/name on the Hub, also with @revision or /file.gguf"
LOCAL_SOURCE = f"{SOURCE}, or a folder, config.json or GGUF file on this machine"


def heading(title: str, words: str) -> None:
    """The heading of a page, and a sentence on what it is for. Both are our own text."""
    gr.HTML(f"<h1>{title}</h1><p>{words}</p>", elem_classes=["head"], apply_default_css=False)


def model(rules: Rules, dropped: str = "config.json or GGUF file", kinds: tuple[str, ...] = (".json", ".gguf")) -> Any:
    """The two ways to name a model: its name, and a dropped file. dropped: what it may be. kinds: its suffixes."""
    source = gr.Textbox(label="Model", info=SOURCE if rules.public else LOCAL_SOURCE, max_lines=1, elem_id="source")
    with gr.Accordion(f"Or drop a {dropped}", open=False):
        upload = gr.File(label=dropped, file_types=list(kinds), height=140, elem_id="upload")
    return {"source": source, "upload": upload}


def answer() -> gr.HTML:
    """Where the answer stands."""
    return gr.HTML(elem_id="answer", apply_default_css=False)

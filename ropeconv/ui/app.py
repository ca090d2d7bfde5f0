"""The application: its pages, each with its own address, and their style. Imports Gradio."""

from __future__ import annotations

from typing import Any

import gradio as gr
from gradio.components import Navbar

from ..formats.template import render
from ..version import __version__
from .front import Front
from .pages import bake, compare, inspect, results, runtimes

PAGES = {"Compare": compare.build, "Runtimes": runtimes.build, "Bake": bake.build, "Results": results.build}
KEPT = (600, 7200)
"""Seconds between two looks at dropped files, and after which they are removed."""


def application(front: Front) -> gr.Blocks:
    """The pages. front: that runs their requests."""
    with gr.Blocks(title="ropeconv", analytics_enabled=False, delete_cache=KEPT) as demo:
        Navbar(main_page_name="Inspect")
        inspect.build(front, demo)
        _foot()
        demo.unload(lambda request: _left(front, request))
    for name, build in PAGES.items():
        with demo.route(name) as page:
            build(front, page)
            _foot()
    demo.queue(max_size=front.rules.waiting, api_open=False)
    return demo  # type: ignore[no-any-return]


def looks() -> dict[str, Any]:
    """How the pages look, as arguments of `launch`. Nothing is loaded from elsewhere."""
    fonts, mono = ["system-ui", "sans-serif"], ["ui-monospace", "monospace"]
    return {
        "theme": gr.themes.Default(primary_hue="blue", font=fonts, font_mono=mono),
        "css": render("ui/style.css"),
        "head": f"<script>{render('ui/page.js')}</script>",
        "footer_links": [],
        "run_history": False,
    }


def _foot() -> None:
    gr.HTML(f'<p class="quiet">ropeconv {__version__}</p>', apply_default_css=False)


def _left(front: Front, request: gr.Request) -> None:
    front.stop(request.session_hash or "")

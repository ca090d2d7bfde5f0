"""The application: its pages, each with its own address, and their style. Imports Gradio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr
from gradio.components import Navbar

from ..formats.package_data import render
from ..version import __version__
from .pages import build_bake, build_compare, build_inspect, build_results, build_runtimes
from .server import Front

PAGES = {
    "Inspect": build_inspect, "Compare": build_compare, "Runtimes": build_runtimes, "Results": build_results,
}  # fmt: skip
KEPT = (600, 7200)
"""Seconds between two looks at dropped files, and after which they are removed."""
QUIET, QUIET_DARK = "#59636e", "#a3abb3"
"""Small type, with a contrast of at least 4.5 to what is behind it."""
HEAD = '<link rel="icon" href="favicon.ico"><style>%s</style><script>%s</script>'


def application(front: Front) -> gr.Blocks:
    """The pages. front: that runs their requests."""

    def left(request: gr.Request) -> None:
        front.stop(request.session_hash or "")

    with gr.Blocks(title="ropeconv", analytics_enabled=False, delete_cache=KEPT) as demo:
        _page(front, demo, build_bake)
        demo.unload(left)
    for name, build in PAGES.items():
        with demo.route(name) as page:
            _page(front, page, build)
    demo.queue(api_open=False)
    demo._queue.sleep_when_free = 0.02  # seconds; with the 0.001 of Gradio an idle page takes 7 % of a core
    return demo  # type: ignore[no-any-return]


def looks() -> dict[str, Any]:
    """How the pages look, as arguments of `launch`. Nothing is loaded from elsewhere."""
    fonts, mono = ["system-ui", "sans-serif"], ["ui-monospace", "monospace"]
    theme = gr.themes.Default(primary_hue="blue", font=fonts, font_mono=mono)
    theme.set(
        body_text_color_subdued=QUIET, body_text_color_subdued_dark=QUIET_DARK, block_info_text_color=QUIET,
        block_info_text_color_dark=QUIET_DARK, button_primary_background_fill="*primary_600",
    )  # fmt: skip
    return {
        "theme": theme,
        # not as `css`, which Gradio puts below selectors of its own
        "head": HEAD % (render("ui/style.css"), render("ui/page.js")),
        "footer_links": [],
        "run_history": False,
    }


def _page(front: Front, page: gr.Blocks, build: Callable[[Front, gr.Blocks], None]) -> None:
    Navbar(main_page_name="Extend")
    build(front, page)
    gr.HTML(f'<p class="quiet">ropeconv {__version__}</p>', apply_default_css=False)

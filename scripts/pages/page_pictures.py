"""Takes the pictures of `ropeconv ui` in Chromium.

    python -m scripts.pages page_pictures             those of docs/publishing.md
    python -m scripts.pages page_pictures FOLDER      every screen at both widths, light and dark

The files in FOLDER are named NAME-WIDTH-SCHEME.png.
"""

import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.features.ui.visitor import Visitor, served
from tests.support.browser import browser
from tests.support.models import make

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "tests" / "data" / "configs" / "Qwen--Qwen3-8B.json"
SHOWN = "Qwen3-8B"
"""A folder with that config.json and the header of its weights, without their bytes."""
WIDTHS = (1200, 400)
SCHEMES = ("light", "dark")


@dataclass(frozen=True)
class Screen:
    """A page with what is typed, and what is pressed then."""

    page: str
    typed: dict[str, str] = field(default_factory=dict)
    pressed: tuple[str, ...] = ()


SCREENS = {
    "ui-bake": Screen("", {"source": SHOWN, "runtimes": "vllm", "memory": "80GB"}),
    "ui-written": Screen("", {"source": "small", "context": "4"}, ("write",)),
    "ui-validated": Screen("", {"source": "small", "context": "4"}, ("write", "validate")),
    "ui-inspect": Screen("inspect", {"source": SHOWN}),
    "ui-compare": Screen("compare", {"source": SHOWN, "context": "128k"}),
    "ui-runtimes": Screen("runtimes"),
    "ui-results": Screen("results", {"source": "small-yarn4"}),
}
"""The screens by name, in the order in which they are visited: the last one shows what was
written.
"""
IN_DOCS = {
    "ui-bake": (1200, "light", 1900),
    "ui-validated": (400, "dark", 1620),
    "ui-inspect": (1200, "light", 1100),
    "ui-compare": (1200, "dark", 1900),
    "ui-runtimes": (1200, "light", 900),
}
"""Pictures of docs/publishing.md: the width, the scheme, and the height that is shown."""


def write_headers(folder: Path) -> None:
    """Write the checkpoint of SHOWN, whose file of weights has the size of the real one.

    Plans and inspections read only its header. The rest is a hole that takes no space.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir()
    shutil.copyfile(CONFIG, folder / "config.json")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    header = {}
    end = 0
    for name, tensor in model.state_dict().items():
        start = end
        end += 2 * tensor.numel()
        places = [start, end]
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": places}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


@contextmanager
def opened_pages() -> Iterator[Visitor]:
    """Serve the page in a folder with two models, and give a browser that visits it."""
    with ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory())
        # plans state where they write, so the path must be the same each time
        site = Path(tempfile.gettempdir(), "models")
        site.mkdir()
        stack.callback(shutil.rmtree, site)
        write_headers(site / SHOWN)
        make("llama", site / "small")
        address, _ = stack.enter_context(served(site))
        opened = stack.enter_context(browser(Path(root, "profile")))
        yield Visitor(opened, address)


def show(visitor: Visitor, screen: Screen) -> None:
    """Open a page, press what a person presses, and wait for the last answer."""
    visitor.open(screen.page, **screen.typed)
    visitor.answer()
    for button in screen.pressed:
        visitor.ask(button)


def take_all(folder: Path) -> None:
    """Write every screen at both widths in both schemes."""
    folder.mkdir(parents=True, exist_ok=True)
    with opened_pages() as visitor:
        for scheme, name in itertools.product(SCHEMES, SCREENS):
            # Gradio reads the scheme when a page is loaded, and follows the width at any time
            visitor.look(WIDTHS[0], scheme)
            show(visitor, SCREENS[name])
            for width in WIDTHS:
                visitor.look(width, scheme)
                visitor.browser.picture(folder / f"{name}-{width}-{scheme}.png")


def take_shown(folder: Path) -> None:
    """Write the pictures of the documentation."""
    with opened_pages() as visitor:
        for name, (width, scheme, height) in IN_DOCS.items():
            visitor.look(width, scheme)
            show(visitor, SCREENS[name])
            visitor.browser.picture(folder / f"{name}.png", height)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        take_all(Path(sys.argv[1]))
    else:
        take_shown(ROOT / "docs" / "pictures")

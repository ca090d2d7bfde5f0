"""Draws the pictures of the pages for docs/publishing.md: screenshots of `ropeconv ui` in Chromium.

python -m scripts.pages page_pictures [FOLDER]
"""

import shutil
import sys
import tempfile
from pathlib import Path

from tests.features.ui.visitor import Visitor, served
from tests.support.browser import browser

ROOT = Path(__file__).parents[2]


CONFIG = ROOT / "tests" / "data" / "configs" / "Qwen--Qwen3-8B.json"
SHOTS = {
    "ui-inspect": ("inspect", {"source": "Qwen3-8B.json"}, 1200, "light", 1100),
    "ui-compare": ("compare", {"source": "Qwen3-8B.json", "context": "128k"}, 1200, "dark", 1900),
    "ui-runtimes": ("runtimes", {}, 1200, "light", 900),
    "ui-bake": ("", {"source": "Qwen3-8B.json", "runtimes": "vllm"}, 1200, "light", 1750),
}
"""Pictures by name: the page, what is typed, the width, the scheme, and the height that is
shown.
"""


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as root:
        site = Path(root, "site")
        site.mkdir()
        shutil.copyfile(CONFIG, site / "Qwen3-8B.json")
        with served(site) as (address, _), browser(Path(root, "profile")) as opened:
            visitor = Visitor(opened, address)
            for name, (page, typed, width, scheme, height) in SHOTS.items():
                visitor.look(width, scheme)
                visitor.open(page, **typed)
                visitor.answer()
                opened.picture(folder / f"{name}.png", height)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures")

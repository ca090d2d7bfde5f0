"""The site builds without a warning and without the network, and loads nothing from other hosts."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from scripts.gather_pages import REPOSITORY, ROOT, gather, moved, places

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("zensical") is None or importlib.util.find_spec("mkdocstrings") is None,
        reason="zensical is not installed; pip install 'ropeconv[docs]'",
    )
]
NAVIGATION = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]


def listed(entries: list[dict[str, object]]) -> list[str]:
    """Every page of the navigation."""
    found = []
    for entry in entries:
        for value in entry.values():
            found += listed(value) if isinstance(value, list) else [str(value)]
    return found


def build(folder: Path, change: str = "") -> subprocess.CompletedProcess[str]:
    """Builds the site in a folder with a copy of what it is made of. change: added to the page of commands."""
    shutil.copytree(ROOT / "ropeconv", folder / "ropeconv", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "scripts" / "theme", folder / "scripts" / "theme")
    shutil.copy(ROOT / "zensical.toml", folder)
    gather(folder / "build" / "docs")
    page = folder / "build" / "docs" / "commands.md"
    page.write_text(page.read_text("utf-8") + change, "utf-8")
    # a proxy where nobody listens: a request of the build would fail
    env = {**os.environ, "NO_COLOR": "1", "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    return folder / "site"


def test_every_page_is_in_the_navigation_and_in_the_list() -> None:
    pages = {place for place in places().values() if place.endswith(".md")}
    assert set(listed(NAVIGATION)) == pages
    text = (ROOT / "docs" / "README.md").read_text("utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"({page.name})" not in text] == ["README.md"]


@pytest.mark.slow
def test_the_site_has_every_page_and_asks_no_other_host(site: Path) -> None:
    for page in listed(NAVIGATION):
        text = (site / page).with_suffix(".html").read_text("utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)=\"?([^\" >]+)", text)
        assert [url for url in loaded if re.match(r"(https?:)?//", url)] == [], page
        assert 'data-md-component="source"' not in text, "this makes a browser ask GitHub"
        assert 'data-md-color-scheme="slate"' in text
    assert "var __index" in (site / "search.js").read_text("utf-8")[:40]


@pytest.mark.slow
def test_the_api_has_the_docstrings(site: Path) -> None:
    import ropeconv

    text = (site / "api.html").read_text("utf-8")
    assert [name for name in ropeconv.__all__ if name not in text and name not in ("METHODS", "__version__")] == []
    assert "Nothing large is read or fetched" in text


@pytest.mark.slow
@pytest.mark.parametrize("change", ["\n[x](nowhere.md)\n", "\n[x](json.md#no-such-heading)\n"])
def test_a_broken_link_stops_the_build(tmp_path: Path, change: str) -> None:
    done = build(tmp_path, change)
    assert done.returncode != 0
    assert "does not exist" in done.stdout + done.stderr


def test_links_lead_where_the_site_has_the_page() -> None:
    known = places()
    text = (
        "[a](docs/json.md#eval) [b](LICENSE) [c](https://x.org/a.md) `[d](docs/json.md)`\n```\n[e](docs/json.md)\n```\n"
    )
    expected = f"[a](json.md#eval) [b]({REPOSITORY}LICENSE) [c](https://x.org/a.md) `[d](docs/json.md)`\n```\n"
    assert moved(text, "README.md", known) == expected + "[e](docs/json.md)\n```\n"
    assert moved("[a](../README.md) [b](README.md)", "docs/json.md", known) == "[a](index.md) [b](pages.md)"
    with pytest.raises(ValueError, match="which does not exist"):
        moved("[a](nowhere.md)", "docs/json.md", known)

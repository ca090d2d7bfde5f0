"""The site builds without a warning and without the network, and loads nothing from other hosts."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import ropeconv
from scripts.gather_pages import ROOT, gather, places

pytest.importorskip("zensical", reason="zensical is not installed; pip install 'ropeconv[docs]'")
pytest.importorskip(
    "mkdocstrings", reason="mkdocstrings is not installed; pip install 'ropeconv[docs]'"
)


def listed(entries: object) -> Iterator[str]:
    if isinstance(entries, str):
        yield entries
    else:
        for entry in entries.values() if isinstance(entries, dict) else entries:
            yield from listed(entry)


PAGES = list(listed(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))


def build(folder: Path, change: str = "") -> subprocess.CompletedProcess[str]:
    """Builds the site in a folder with a copy of what it is made of. change: added to the page of
    commands.
    """
    shutil.copytree(
        ROOT / "ropeconv", folder / "ropeconv", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(ROOT / "scripts" / "theme", folder / "scripts" / "theme")
    shutil.copy(ROOT / "zensical.toml", folder)
    gather(folder / "build" / "docs")
    with (folder / "build" / "docs" / "commands.md").open("a", encoding="utf-8") as page:
        page.write(change)
    # a proxy where nobody listens: a request of the build would fail
    env = {
        **os.environ,
        "NO_COLOR": "1",
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_site_has_every_page_and_docstring_and_asks_no_other_host(tmp_path: Path) -> None:
    done = build(tmp_path)
    site = tmp_path / "site"
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    for page in PAGES:
        text = (site / page).with_suffix(".html").read_text("utf-8")
        loaded = re.findall(
            r"<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)=\"?([^\" >]+)", text
        )
        assert [url for url in loaded if re.match(r"(https?:)?//", url)] == [], page
        assert 'data-md-component="source"' not in text, "this makes a browser ask GitHub"
        assert 'data-md-color-scheme="slate"' in text
    assert "var __index" in (site / "search.js").read_text("utf-8")[:40]
    text = (site / "python.html").read_text("utf-8")
    assert [
        name
        for name in ropeconv.__all__
        if name not in text and name not in ("METHODS", "__version__")
    ] == []
    assert "Nothing large is read or fetched" in text


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("change", ["\n[x](nowhere.md)\n", "\n[x](python.md#no-such-heading)\n"])
def test_a_broken_link_stops_the_build(tmp_path: Path, change: str) -> None:
    done = build(tmp_path, change)
    assert done.returncode != 0
    assert "does not exist" in done.stdout + done.stderr


def test_every_page_is_in_the_navigation_and_in_the_list() -> None:
    assert set(PAGES) == {place for place in places().values() if place.endswith(".md")}
    text = (ROOT / "docs" / "README.md").read_text("utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"({page.name})" not in text] == [
        "README.md"
    ]

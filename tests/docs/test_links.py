"""Links lead to pages, headings and files that exist: in pages, in the code, and absolute ones to
this repository.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.gather_pages import CODE, RAW, REPOSITORY, ROOT

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        ROOT / "tests" / "README.md",
        ROOT / "scripts" / "README.md",
        ROOT / "scripts" / "research" / "README.md",
    ]
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"(?<![\w/-])docs/[\w/-]+\.(?:md|json|txt|svg|png)(?:#[\w-]+)?")
"""A page that the code or a message names."""


def headings(path: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    return {*slugs, *re.findall(r'<a id="([^"]+)"', text)}


def broken(page: Path, text: str) -> Iterator[str]:
    for link in LINK.findall(CODE.sub("", text)):
        inside = link.removeprefix(REPOSITORY).removeprefix(RAW)
        if inside == link and re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = inside.partition("#")
        folder = page.parent if inside == link else ROOT
        target = folder / name if name else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in headings(target)
        ):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert list(broken(page, page.read_text("utf-8"))) == []


def test_a_link_to_a_page_or_a_heading_that_is_gone_would_be_found() -> None:
    text = (
        f"[a](nowhere.md) [b](python.md#nothing) [c]({REPOSITORY}docs/nowhere.md)"
        " [d](python.md#apply) [e](https://x.org)"
    )
    assert list(broken(ROOT / "docs" / "engines.md", text)) == [
        "nowhere.md",
        "python.md#nothing",
        f"{REPOSITORY}docs/nowhere.md",
    ]


def test_pages_that_code_and_messages_name_exist() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "ropeconv", "templates", "scripts", "tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout.split()
    if not listed:
        pytest.skip("not a checkout with git")
    named = set()
    for name in listed:
        path = ROOT / name
        if (
            path.suffix in (".py", ".jinja", ".toml", ".md", "")
            and path.is_file()
            and path != Path(__file__)
        ):
            named |= {
                (name, link)
                for link in NAMED.findall(path.read_text("utf-8", errors="ignore"))
                if "NAME" not in link
            }
    assert len(named) > 10
    wrong = []
    for name, link in sorted(named):
        page, _, anchor = link.partition("#")
        target = ROOT / page
        if not (target.exists() and (not anchor or anchor in headings(target))):
            wrong.append((name, link))
    assert wrong == []


def test_readme_has_no_relative_link() -> None:
    """Package indexes show README.md without the repository beside it."""
    links = LINK.findall(CODE.sub("", (ROOT / "README.md").read_text("utf-8")))
    assert links
    assert [link for link in links if not link.startswith("https://")] == []

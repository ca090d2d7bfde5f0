"""Gathers the pages of the site in one folder, from which `./scripts/docs` builds it.

    python scripts/gather_pages.py build/docs

They are docs/ and the pages that stand beside it. README.md is the first page of the site, and
docs/README.md, the list of pages, is pages.md. Links are changed accordingly; other files of the
repository are linked on GitHub. Formulas become MathML.
"""

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # this is run as a program too

from scripts.formulas import with_mathml  # noqa: E402

REPOSITORY = "https://github.com/ropeconv/ropeconv/blob/main/"
RAW = "https://raw.githubusercontent.com/ropeconv/ropeconv/main/"
"""Where README.md links files and pictures of the repository, for package indexes."""
BESIDE = {
    "README.md": "index.md",
    "SECURITY.md": "SECURITY.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
}
BESIDE |= {"CHANGELOG.md": "CHANGELOG.md", "docs/README.md": "pages.md"}
"""Pages with another place in the site than docs/NAME has: paths in the repository and in the
site.
"""
ASSETS = ("site.css", "worker.js")
"""Files of scripts/theme that pages load."""
CODE = re.compile(r"^(`{3,}).*?^\1[^\n]*$|(`+)(?!`).+?(?<!`)\2(?!`)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()([^)#\s]+)")


def places() -> dict[str, str]:
    """Every page and picture: its path in the repository, and its path in the site."""
    # GitHub shows notebooks, and the site would only offer their JSON, so links go there
    files = (
        path for path in (ROOT / "docs").rglob("*") if path.is_file() and path.suffix != ".ipynb"
    )
    pages = {
        path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").as_posix()
        for path in files
    }
    return pages | BESIDE


def moved(text: str, page: str, known: dict[str, str]) -> str:
    """Return the text of a page with its links as the site has them.

    Links to other pages of the site become relative to the page; links to files that the site does
    not have go to the repository.

    Args:
        text: Markdown.
        page: Its path in the repository.
        known: The places of pages and pictures, as `places` returns them.

    Raises:
        ValueError: For a link to a file that does not exist.
    """
    folder = os.path.dirname(page)

    def change(match: re.Match[str]) -> str:
        """Return a link of Markdown, from "](" to before ")", with another target."""
        target = match[2]
        path = target.removeprefix(REPOSITORY).removeprefix(RAW)
        is_address_of_repository = path != target
        if not is_address_of_repository:
            if re.match(r"[a-z]+:", target):  # another address, such as https:
                return match[0]
            path = os.path.normpath(os.path.join(folder, target))
        if path in known:
            place_of_page = os.path.dirname(known[page]) or "."
            return match[1] + os.path.relpath(known[path], place_of_page)
        if path.startswith("..") or not (ROOT / path).exists():
            raise ValueError(f"{page} links {target}, which does not exist")
        return match[1] + REPOSITORY + path

    # code stays unchanged, and so does what looks like a link in it
    parts = []
    end_of_code = 0
    for code in CODE.finditer(text):
        before = text[end_of_code : code.start()]
        parts += [LINK.sub(change, before), code[0]]
        end_of_code = code.end()
    parts.append(LINK.sub(change, text[end_of_code:]))
    return "".join(parts)


def gather(folder: Path) -> None:
    """Write the pages of the site into a folder, which is emptied first.

    Args:
        folder: A folder of the repository.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    known = places()
    for path, place in known.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".md"):
            text = moved((ROOT / path).read_text("utf-8"), path, known)
            target.write_text(with_mathml(text), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / path, target)
    for name in ASSETS:
        shutil.copyfile(ROOT / "scripts" / "theme" / name, folder / name)


if __name__ == "__main__":
    gather(Path(sys.argv[1]))

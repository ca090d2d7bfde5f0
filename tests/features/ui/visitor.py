"""A person at the pages: types, presses, waits for the answer. And the pages, as a process of their
own.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from ...support.browser import Browser
from ...support.waiting import until


@contextmanager
def served(
    folder: Path, environment: dict[str, str] | None = None, show: bool = False
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`ropeconv ui` in a folder: its address with the key, and its process. show: whether it opens
    a browser.
    """
    command = [sys.executable, "-m", "ropeconv", "ui", *([] if show else ["--no-browser"])]
    env = {**os.environ, **(environment or {})}
    with (folder / "ui.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), (folder / "ui.log").read_text()
            yield address, process
        finally:
            process.terminate()
            process.wait(60)


class Visitor:
    """browser: of the visitor. address: of the pages, with its key."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.browser, self.driver = browser, browser.driver
        self.driver.get(address)
        self.first("main")
        self.site = self.driver.current_url.partition("?")[0].rstrip("/")
        self.look()

    @property
    def origin(self) -> str:
        return "http://" + urlsplit(self.site).netloc

    def look(self, width: int = 1280, scheme: str = "light") -> None:
        self.browser.show(width, scheme)

    def open(self, page: str, **typed: str) -> None:
        """Opens a page with what its address fills in."""
        self.driver.get(f"{self.site}/{page}?{urlencode(typed)}")
        self.first("main button, main input")
        for name in typed.keys() & {"source", "context", "family"}:  # others may be folded away
            until(lambda: self.field(name).get_attribute("value") == typed[name], name)  # noqa: B023

    def all(self, selector: str) -> list[Any]:
        elements: list[Any] = self.driver.find_elements("css selector", selector)
        return elements

    def first(self, selector: str) -> Any:
        """The first element of a selector, as soon as there is one."""
        return until(lambda: self.all(selector), selector)[0]

    def field(self, name: str) -> Any:
        return self.first(f"#{name} input, #{name} textarea")

    def type(self, name: str, text: str) -> None:
        field = self.field(name)
        field.clear()
        field.send_keys(text)

    def press(self, button: str) -> None:
        """Presses a button, after what is answered so far is marked as old."""
        self.driver.execute_script(
            "document.querySelectorAll('.answer').forEach((e) => { e.dataset.old = 1; })"
        )
        self.first(f"button#{button}, #{button} button").click()

    def answer(self) -> str:
        """The text of the next answer, when it is complete."""
        return str(self.first("#answer .answer:not([data-old]):not([role=status])").text)

    def ask(self, button: str) -> str:
        self.press(button)
        return self.answer()

    def address(self) -> dict[str, str]:
        return {
            name: values[0]
            for name, values in parse_qs(urlsplit(self.driver.current_url).query).items()
        }

"""The lines of a transcript, and the commands that are run for it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSION_OF = """
import importlib.metadata, sys
for name in sys.argv[1:]:
    try:
        print(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        pass
"""


LEAST = 4
"""Characters that two texts need to be called the same."""


def same_text(given: str, expected: str) -> bool:
    """Return whether an engine generated the tokens of a text.

    transformers writes bytes that do not make a character as U+FFFD. llama-cpp-python leaves them
    out, and continues until a character is whole; mistral.rs cuts the first blank.
    """
    if given == expected:
        return True
    texts = [text.replace("\ufffd", "").strip() for text in (given, expected)]
    shorter, longer = sorted(texts, key=len)
    return len(shorter) >= LEAST and longer.startswith(shorter)


class Session:
    """A folder in which commands run, and what they print.

    python: that of the engine. variables: of its environment.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.python = sys.executable
        self.variables: dict[str, str] = {}

    def say(self, command: str) -> None:
        """Note a command."""
        self.lines += ["", f"$ {command}"] if self.lines else [f"$ {command}"]

    def note(self, sentence: str) -> None:
        """Note a sentence."""
        self.lines += ["", sentence]

    def answers(self, given: str, expected: dict[str, str]) -> None:
        """Note what an engine answers, and what transformers does with and without the method."""
        rows = {"the engine": given}
        rows |= {f"transformers, {name}": text for name, text in expected.items()}
        for name, text in rows.items():
            is_same = name != "the engine" and same_text(given, text)
            same = "  (the same)" if is_same else ""
            self.lines.append(f"  {name}: {json.dumps(text)}{same}")

    def ropeconv(self, *words: str) -> int:
        """Run ropeconv, and note what it prints. Returns the exit code."""
        command = [sys.executable, "-m", "ropeconv", *words]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        shown = re.sub(r"http://127\.0\.0\.1:\d+", "http://localhost:8000", " ".join(words))
        self.say(f"ropeconv {shown}")
        printed = (done.stdout + done.stderr if done.returncode == 1 else done.stdout).strip()
        printed = printed.replace(str(self.folder), "FOLDER")
        self.lines += [line.rstrip() for line in printed.splitlines()]
        self.lines.append(f"exit code {done.returncode}")
        return done.returncode

    def versions(self, packages: tuple[str, ...]) -> str:
        """Return the installed versions of packages of the engine."""
        command = [self.python, "-c", VERSION_OF, *packages]
        variables = {**os.environ, "PYTHONPATH": "", **self.variables}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
        return ", ".join(done.stdout.splitlines())

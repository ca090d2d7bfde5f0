"""Blocks of code in pages, pasted into bash and Python in a scratch folder.

`blocks` reads them. A `Machine` runs them one after the other, as a reader of one page does. Its
`ropeconv` is this checkout, in the process of the test. Programs that need a network, a GPU or a
server are stand-ins: `hf download` makes a small model under the name that it is asked for, and the
others only note their words.
"""

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .in_process import command

FENCE = re.compile(
    r"^(?P<fence>`{3,})(?P<language>[^\n]*)\n(?P<body>.*?)^(?P=fence)$", re.DOTALL | re.MULTILINE
)
PROMPT = re.compile(r"^\$ ([^\n]*(?:(?<=\\)\n[^\n]*)*)", re.MULTILINE)
SAVED = re.compile(r"[Ss]ave (?:this|it) as `([^`]+)`")
"""How a sentence before a block names the file that the reader makes of it."""
LLAMA_3_1 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
PUBLISHED: dict[str, dict[str, object]] = {
    "Llama-3.1": {"max_position_embeddings": 131072, "rope_parameters": LLAMA_3_1},
    "Llama-3-8B": {"max_position_embeddings": 8192},
    "Llama-2": {"max_position_embeddings": 4096},
    "SmolLM2": {"max_position_embeddings": 8192},
}
"""Keys of published configs by a part of their names."""
UNKNOWN_TRAINED = 32768
"""The tokens that the other models declare."""
CLIENT = """\
#!{python} -SE
import json, os, socket, sys
end = socket.socket(socket.AF_UNIX)
end.connect({address!r})
end.sendall(json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], os.getcwd()]).encode())
end.shutdown(socket.SHUT_WR)
code, out, err = json.loads(end.makefile().read())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""
"""A program of the machine: it asks the process of the test to do its work."""


@dataclass(frozen=True)
class Block:
    """A block of code in a page."""

    page: str
    line: int
    language: str
    body: str
    before: str
    """The paragraph above the block."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def program(self) -> str:
        """The lines that a reader types: all of a block of shell, or those after a `$`."""
        if self.language != "console":
            return self.body
        return "\n".join(match[1] for match in PROMPT.finditer(self.body)) + "\n"

    @property
    def saved_as(self) -> str:
        """The file that the page asks the reader to save the block as; empty for none."""
        match = SAVED.search(self.before)
        return match[1] if match else ""


def blocks(text: str, page: str) -> Iterator[Block]:
    """Yield the blocks of a page in their order.

    Args:
        text: Markdown.
        page: Its name, for messages.
    """
    for match in FENCE.finditer(text):
        before = text[: match.start()].rstrip().rpartition("\n\n")[2]
        line = text.count("\n", 0, match.start()) + 1
        yield Block(page, line, match["language"], match["body"], before)


@dataclass
class Machine:
    """A folder with a shell, in which programs are stand-ins or this checkout."""

    folder: Path
    programs: Path
    listening: socket.socket
    model: Path
    """A small checkpoint with its GGUF file beside it, for downloads."""

    noted: list[list[str]] = field(default_factory=list)
    """The words of programs that are not run."""

    values: dict[str, object] = field(default_factory=dict)
    """The names that blocks of Python have defined."""

    def shell(self, program: str) -> subprocess.CompletedProcess[str]:
        """Run a program in bash, which ends at the first command that fails."""
        env = {
            "PATH": f"{self.programs}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
        }
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", program],
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
            while process.poll() is None:
                self.serve()
            said.seek(0)
            return subprocess.CompletedProcess(program, process.returncode, said.read())

    def python(self, program: str, name: str) -> None:
        """Run a block of Python after those before it; an exception is that of the block."""
        with chdir(self.folder):
            exec(compile(program, name, "exec"), self.values)

    def serve(self) -> None:
        """Answer one program that the shell started, if there is one within a moment."""
        try:
            connection, _ = self.listening.accept()
        except TimeoutError:
            return
        with connection, connection.makefile("rw") as stream:
            name, words, folder = json.loads(stream.read())
            code, out, err = self.run(name, words, Path(folder))
            stream.write(json.dumps([code, out, err]))

    def run(self, name: str, words: list[str], folder: Path) -> tuple[int, str, str]:
        """Do the work of a program; return its exit code, output and errors."""
        if name == "ropeconv":
            return tuple(command(folder, *words))
        self.noted.append([name, *words])
        if name == "hf":
            return self.download(words, folder)
        return 0, "", ""

    def download(self, words: list[str], folder: Path) -> tuple[int, str, str]:
        """Make what `hf download` would bring, after the real program has read its words."""
        problem = problem_of_hf(words)
        if problem:
            return 2, "", problem
        target = folder / words[words.index("--local-dir") + 1]
        files = [word for word in words[2:] if word.endswith(".gguf")]
        target.mkdir(parents=True, exist_ok=True)
        for name in files:
            shutil.copyfile(self.model.with_suffix(".gguf"), target / name)
        if not files:
            make_model(self.model, target, words[1])
        return 0, "", ""


def make_model(model: Path, target: Path, name: str) -> None:
    """Write a small model with the trained length and the scaling of a published one.

    Args:
        model: The small model.
        target: The folder to write.
        name: Of the published model; unknown ones declare UNKNOWN_TRAINED tokens.
    """
    shutil.copytree(model, target, dirs_exist_ok=True)
    config = json.loads((target / "config.json").read_text())
    known = [keys for part, keys in PUBLISHED.items() if part in name]
    config |= known[0] if known else {"max_position_embeddings": UNKNOWN_TRAINED}
    (target / "config.json").write_text(json.dumps(config, indent=2))


def problem_of_hf(words: list[str]) -> str:
    """Return why the real `hf` refuses words; empty where it would begin to download."""
    from huggingface_hub.cli.hf import app

    context = app.make_context("hf", list(words))
    try:
        _, found, rest = app.resolve_command(context, list(words))
        found.make_context(words[0], list(rest), parent=context)
    except Exception as problem:  # its click is another package than that of Typer
        return f"hf {words[0]}: {problem}"
    return ""


@contextmanager
def machine(folder: Path, model: Path, noted: tuple[str, ...]) -> Iterator[Machine]:
    """Make a machine in an empty folder.

    Args:
        folder: Where pages are pasted.
        model: As `Machine.model`.
        noted: Programs that only note their words.
    """
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as listening:
        programs = Path(name, "bin")
        programs.mkdir()
        listening.bind(str(Path(name, "s")))
        listening.listen()
        listening.settimeout(0.02)
        client = CLIENT.format(python=sys.executable, address=str(Path(name, "s")))
        for program in ("ropeconv", "hf", *noted):
            path = programs / program
            path.write_text(client)
            path.chmod(0o755)
        python = programs / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        yield Machine(folder, programs, listening, model)

"""Commands in the pages of docs/: which there are, and what those with output print.

    python -m scripts.pages transcripts [PAGE ...]

A block of code whose commands begin with `$` also has their output; it is run beside the published
configs of the tests, each as NAME/config.json, small models, and a text. The tutorial is run beside
a real model. A line `...` stands for any lines. This script writes the output into blocks without
such a line, and prints that of the others where it does not fit. Commands of other blocks are run
by tests/docs/test_commands.py on a small model.
"""

import fcntl
import json
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import textwrap
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = (
    "../README.md",
    "engines.md",
    "methods.md",
    "training.md",
    "gguf.md",
    "troubleshooting.md",
    "validating.md",
    "evaluating.md",
)
"""Pages whose transcripts are checked."""
TUTORIAL = "tutorial.md"
COLUMNS = 110
OF_WEIGHTS = {
    "ropeconv bound ./SmolLM2-135M --weights",
    (
        "ropeconv eval SmolLM2-135M-Instruct --methods base,yarn:4,ntk:4,mixed:4,linear:4 --text"
        " manual.txt --measure growth,passkey --lengths 256,768 --windows 6 --depths 2"
    ),
    (
        "ropeconv eval SmolLM2-135M-Instruct --methods"
        " base,linear:2,ntk:2,by-parts:2,yarn:2,mixed:2,ntk-fixed:2 --text 'texts/*.txt' --lengths"
        " 1/4T,1T,2T --windows 12 --depths 1 --measure growth,longppl,passkey --dtype bfloat16"
    ),
    (
        "ropeconv eval SmolLM2-135M-Instruct --methods base,yarn:2 --text manual.txt --lengths 12k"
        " --windows 1 --targets 512"
    ),
    "ropeconv tune ./model --text 'texts/*.txt' --context 256 -o tuned.json",
    (
        "ropeconv validate tiny-llama-yarn16 --against tiny-llama --server http://localhost:8000"
        " --length 1000"
    ),
}
"""Commands whose output is that of a real model's weights or of a server, which are not here."""
BLOCK = re.compile(r"^```[^\n]*\n(?P<body>\$ ropeconv .*?)^```$", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```(?P<language>[^\n]*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ ([^\n]*(?:(?<=\\)\n[^\n]*)*)\n", re.MULTILINE)
BOLD = re.compile(r"\x1b\[[\d;]*m")


@dataclass(frozen=True)
class Transcript:
    """A command with what a page shows of its output."""

    command: str
    shown: str

    @property
    def elided(self) -> bool:
        """Whether lines of the output are left out."""
        return "..." in self.shown.splitlines()


def transcripts(body: str) -> list[Transcript]:
    """Return the commands of a block, each with what is shown below it.

    Args:
        body: The text between the fences of the block.
    """
    found = []
    matches = list(COMMAND.finditer(body))
    ends = [match.start() for match in matches[1:]] + [len(body)]
    for match, end in zip(matches, ends, strict=True):
        command = re.sub(r"\s*\\\n\s*", " ", match[1])  # lines that end with \ are one
        found.append(Transcript(command, body[match.end() : end].strip("\n")))
    return found


def fits(shown: str, real: str) -> bool:
    """Whether output is what a page shows, but for blank lines.

    Args:
        shown: The lines of the page, with a line `...` for any lines.
        real: The whole output.
    """
    # the lines between those with ...
    parts: list[list[str]] = [[]]
    for line in shown.splitlines():
        if line == "...":
            parts.append([])
        elif line:
            parts[-1].append(line)
    first = parts[0]
    last = parts[-1]

    rest = [line for line in real.splitlines() if line]
    if rest[: len(first)] != first:
        return False
    if last and rest[-len(last) :] != last:
        return False
    for part in parts:
        place = _find_lines(part, rest)
        if place is None:
            return False
        rest = rest[place + len(part) :]
    return len(parts) > 1 or not rest


def _find_lines(part: list[str], lines: list[str]) -> int | None:
    """Return where some lines begin among others; None where they are not there."""
    for start in range(len(lines) - len(part) + 1):
        if lines[start : start + len(part)] == part:
            return start
    return None


def output_of(command: str, folder: Path) -> str:
    """Return what a command prints in a terminal of 110 columns without colours, errors last.

    Args:
        command: A command of ropeconv, such as "ropeconv inspect phi-2".
        folder: The folder in which it runs.
    """
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm",
        "NO_COLOR": "1",
        "PYTHONUTF8": "1",
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": str(COLUMNS),
        "ROPECONV_MEMORY": "24GB",  # else the pages would have the memory of this machine
    }
    words = [sys.executable, "-m", "ropeconv", *shlex.split(command)[1:]]
    terminal, end = pty.openpty()
    size = struct.pack("HHHH", 60, COLUMNS, 0, 0)  # rows, columns, and two that are not used
    fcntl.ioctl(end, termios.TIOCSWINSZ, size)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            words, stdout=end, stderr=errors, stdin=subprocess.DEVNULL, cwd=folder, env=env
        )
        os.close(end)
        printed = _read_all(terminal).decode()
        process.wait()
        os.close(terminal)
        errors.seek(0)
        complaints = errors.read().decode()

    parts = [BOLD.sub("", printed).replace("\r\n", "\n")]
    for line in complaints.splitlines():
        parts.append(textwrap.fill(line, COLUMNS, break_on_hyphens=False))
    lines = "\n".join(parts).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def _read_all(terminal: int) -> bytes:
    """Return what is written to the other end of a terminal until it is closed."""
    parts = []
    while True:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # Linux says so when the other end is closed
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def published(folder: Path) -> Path:
    """Fill a folder with the files that commands of the pages name, and return it.

    These are published configs, the small model `tiny-qwen3` and a GGUF file, a graph, and a text.
    """
    for path in sorted((ROOT / "tests" / "data" / "configs").glob("*.json")):
        name = path.stem.split("--")[1]
        if not name.endswith((".first", ".params")):
            (folder / name).mkdir()
            shutil.copyfile(path, folder / name / "config.json")
    small = small_models(folder / ".small")
    (small / "Qwen3-8B-Q8_0.gguf").rename(folder / "Qwen3-8B-Q8_0.gguf")
    (small / "Qwen3-8B").rename(folder / "tiny-qwen3")
    (small / "onnx").rename(folder / "onnx")
    shutil.copyfile(ROOT / "LICENSE", folder / "book.txt")
    edit_by_hand(folder)
    return folder


def edit_by_hand(folder: Path) -> None:
    """Add the mistakes of docs/troubleshooting.md: configs with what people wrote into them.

    Args:
        folder: As `published` fills it.
    """
    yarn = {"rope_type": "yarn", "factor": 4.0}
    misspelt = {"original_max_position_embedding": 4096, "attn_factor": 1.0}
    edits: dict[str, tuple[str, dict[str, Any]]] = {
        "phi-2-by-hand": (
            "phi-2",
            {
                "rope_scaling": yarn | {"original_max_position_embeddings": 2048},
                "max_position_embeddings": 8192,
            },
        ),
        "qwen2.5-by-hand": (
            "Qwen2.5-7B-Instruct",
            {"rope_scaling": yarn | {"original_max_position_embeddings": 32768}},
        ),
        "llama-2-by-hand": (
            "Llama-2-7b-hf",
            {"rope_scaling": yarn | misspelt, "max_position_embeddings": 16384},
        ),
        "tiny-longer": ("tiny-qwen3", {"max_position_embeddings": 256}),
    }
    for name, (source, keys) in edits.items():
        shutil.copytree(folder / source, folder / name)
        config = folder / name / "config.json"
        document = json.loads(config.read_text("utf-8")) | keys
        config.write_text(json.dumps(document, indent=2), encoding="utf-8")


def tutorial(folder: Path) -> Path:
    """Copies the real model of the tutorial into a folder, and writes its text. Raises Unavailable
    of real_model.
    """
    from scripts.real_model import real_model

    checkpoint = real_model().checkpoint
    shutil.copytree(
        checkpoint, folder / checkpoint.name, ignore=shutil.ignore_patterns("ropeconv.json")
    )
    (folder / "manual.txt").write_text("\n".join(topics.values()) + "\n", encoding="utf-8")
    return folder


def small_models(folder: Path) -> Path:
    """Make a folder with a `Qwen3-8B` of two layers, its GGUF file and a graph, and return it."""
    from tests.support.graphs import small_graph
    from tests.support.llamacpp import checkpoint

    folder.mkdir()
    small_graph(folder / "onnx")
    checkpoint("qwen3", folder / "Qwen3-8B")
    words = ["apply", "Qwen3-8B", "--as-is", "--to", "gguf", "--outtype", "q8_0", "-q"]
    command = [sys.executable, "-m", "ropeconv", *words, "-o", "Qwen3-8B-Q8_0.gguf"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
    return folder


def refreshed(text: str, folder: Path) -> tuple[str, list[str]]:
    """Run the commands of a page, and return its text with their output.

    Args:
        text: The text of the page.
        folder: The folder in which they run, as `published` fills it.

    Returns:
        The text, and the real output of each command whose block leaves lines out and does not fit.
        Such a block stays unchanged, since a person has to choose its lines.
    """
    wrong = []

    def change(match: re.Match[str]) -> str:
        """Return a block of a page with the output of its commands."""
        parts = []
        for transcript in transcripts(match["body"]):
            if transcript.command in OF_WEIGHTS:
                return match[0]
            real = output_of(transcript.command, folder)
            shown = real
            if transcript.elided:
                shown = transcript.shown
                if not fits(shown, real):
                    wrong.append(f"$ {transcript.command}\n{real}\n")
            parts.append(f"$ {transcript.command}\n{shown}\n")
        return match[0].replace(match["body"], "\n".join(parts))

    return BLOCK.sub(change, text), wrong


def main(pages: list[str]) -> int:
    """Rewrite pages; return 1 where a person must change a block.

    Args:
        pages: Their names in docs, such as "methods.md".
    """
    code = 0
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as other:
        beside = published(Path(name))
        for page in pages:
            folder = tutorial(Path(other)) if page == TUTORIAL else beside
            path = ROOT / "docs" / page
            text, wrong = refreshed(path.read_text("utf-8"), folder)
            path.write_text(text, encoding="utf-8")
            sentences = [f"{page} shows something else of\n{transcript}" for transcript in wrong]
            print(*sentences, sep="\n", end="")
            if wrong:
                code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(PAGES)))

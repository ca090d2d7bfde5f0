"""The commands that a screen tells people to run, and their execution as printed."""

import re
import shlex
from pathlib import Path

from .in_process import Done, command

STEP = re.compile(
    r"^(?:Next|Run|Check|Fix|Train|Measure|Bake|Untuned|[\w.-]+):\s+(ropeconv .*)$", re.MULTILINE
)
"""A line with a command of ropeconv after what it does."""
INLINE = re.compile(r"`(ropeconv [^`]+)`")
PLACES = re.compile(r"(?<![\w-])(?:FILE|MODEL|CHECKPOINT|TARGET|SOURCE|OUT|FOLDER|PATH)(?![\w-])")
"""Words that the reader replaces."""


def printed_commands(text: str) -> list[str]:
    """The `ropeconv` commands of lines such as `Check:`, and of sentences, in their order."""
    found = [
        (match.start(), match[1]) for pattern in (STEP, INLINE) for match in pattern.finditer(text)
    ]
    return [line.strip() for _, line in sorted(found)]


def run_line(folder: Path, line: str, places: dict[str, str] | None = None) -> list[Done]:
    """Runs a printed line in a folder, the parts of `a && b` one after the other. places: for words
    in capitals.
    """
    filled = PLACES.sub(lambda match: (places or {}).get(match[0], match[0]), line)
    done = []
    for part in filled.split(" && "):
        words = shlex.split(part)
        assert words[0] == "ropeconv", line
        done.append(command(folder, *words[1:]))
        if done[-1].returncode:
            break
    return done

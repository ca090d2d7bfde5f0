"""Reads `Load` and then jobs from stdin, a line of JSON each, and answers each on stdout, until stdin ends.

What the libraries print goes to stderr. The process ends with its caller, also in the middle of a job.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from typing import BinaryIO

import msgspec

from ..messages import Job, Load, Read
from .jobs import answer
from .model import Model


def main() -> None:
    """Answers until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to handle
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    lines: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, lines), daemon=True).start()

    def say(message: msgspec.Struct) -> None:
        answers.write(msgspec.json.encode(message) + b"\n")

    model = Model(msgspec.json.decode(lines.get(), type=Load))
    say(model.loaded())
    while True:
        job: Job = msgspec.json.decode(lines.get(), type=Job)
        say(answer(model, job, lambda count: say(Read(count))))


def _read(stdin: BinaryIO, lines: queue.Queue[bytes]) -> None:
    """Hands on the lines of stdin, and ends the process with it: its caller has ended, or wants no more."""
    for line in stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()

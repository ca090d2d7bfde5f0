"""A program that answers questions, in a process that ends with its caller."""

import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import BinaryIO, Self

TAIL = 1 << 20
"""Bytes at the end of stderr for messages."""


class ProgramProcess:
    """A program that reads questions from stdin and writes its answers to stdout, as lines of JSON.

    It starts when it is entered and is killed at the end of the block. It also ends when its stdin
    closes with the caller.
    """

    process: subprocess.Popen[bytes]

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.command = command
        self.env = env

    @property
    def is_running(self) -> bool:
        """Whether the program was started and has not ended."""
        return "process" in vars(self) and self.process.poll() is None

    def start(self) -> None:
        """Start the program, and a thread that puts the lines of its answers into a queue."""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  a pipe would have to be read all the time
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=self.env,
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        assert self.process.stdout is not None
        threading.Thread(
            target=_queue_lines, args=(self.process.stdout, self._lines), daemon=True
        ).start()

    def send(self, line: bytes) -> None:
        """Send a line of JSON. A program that has ended is noticed in `receive`."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return

    def receive(self, seconds: float | None = None) -> bytes:
        """Return the next line of the program; empty where it has ended.

        Args:
            seconds: How long to wait, None for any time.

        Raises:
            TimeoutError: No line comes in that time.
        """
        try:
            return self._lines.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None

    def end(self) -> tuple[int, str]:
        """Wait for the end of the program, and return its code and the end of its stderr."""
        code = self.process.wait()
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - TAIL))
        return code, self._stderr.read().decode("utf-8", "replace")

    def stop(self) -> None:
        """Kill the program. May be called again."""
        if "process" not in vars(self):
            return
        if self.process.returncode is None:
            self.process.kill()
            self.process.wait()
        for file in (self.process.stdin, self._stderr):
            if file is not None:
                try:
                    file.close()
                except BrokenPipeError:  # it had not read everything
                    continue

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _queue_lines(stdout: BinaryIO, lines: queue.Queue[bytes]) -> None:
    """Put the lines of a program into a queue, and an empty one at its end."""
    with stdout:
        for line in stdout:
            lines.put(line)
    lines.put(b"")

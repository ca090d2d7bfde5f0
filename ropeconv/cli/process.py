"""The process of the command line: its standard streams and its signals."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
from contextlib import suppress
from types import FrameType

from ..failures import Stopped

_received: list[int] = []
_stdout: list[os.stat_result] = []


def prepare() -> None:
    """Makes standard streams safe to write to, and lets SIGTERM and SIGHUP end a run as Ctrl-C does.

    A stream that is closed is opened on /dev/null, so that no file of the run takes its number. Characters that an
    encoding lacks are written as escapes.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    _stdout[:] = [os.fstat(1)]
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is signal.SIG_DFL:
            signal.signal(ending, _end)


def interrupted(ctrl_c: int) -> int:
    """The exit code of an interrupted run: 128 and the signal. ctrl_c: the one where no signal came."""
    return 128 + _received[0] if _received else ctrl_c


def reader_gone() -> bool:
    """Whether nobody reads stdout or stderr any more. False for streams that are no files of the system.

    rich, which prints the help, opens /dev/null as stdout when that happens, before it raises.
    """
    if _stdout and not os.path.samestat(_stdout[0], os.fstat(1)):
        return True
    watch = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            watch.register(stream.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in watch.poll(0))


def drop_output() -> None:
    """Sends what is still to be written to /dev/null, after the reader of a pipe has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Stopped


def _end(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
    raise Stopped

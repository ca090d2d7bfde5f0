"""`asking_installed`: installed runtimes say how they read a config, before any table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from ..errors import UsageError
from ..runtimes.askable import ASKABLE, BEFORE_WRITING
from ..runtimes.asked import asking
from ..runtimes.runtime import canonical


@contextmanager
def asking_installed(
    names: Iterable[str] | None,
    python: str,
    tell: Callable[[str], None] = lambda sentence: None,
) -> Iterator[None]:
    """Let installed runtimes say how they read a config, while the block judges configs.

    Without it, all verdicts are from the tables that come with ropeconv.

    Args:
        names: Runtimes that the user named, as `--runtime` has them; None for every one.
        python: The interpreter of another environment; empty for this one. In this one,
            transformers is not asked here: `apply` asks it about every output that it wrote.
        tell: Called with a sentence before a runtime is started.

    Raises:
        UsageError: Where an interpreter is named, and nothing is asked in it.
    """
    wanted = _wanted_runtimes(names, python)

    # nothing is imported where none of them is installed here
    packages = [askable.package for askable in ASKABLE if askable.name in wanted]
    may_be_found = bool(python) or any(find_spec(package) for package in packages)
    if not may_be_found:
        yield
        return
    from ..engines.probes.installed import find_installed

    found = []
    for name in wanted:
        installed = find_installed(name, python)
        if installed is not None:
            installed.tell = tell
            found.append(installed)
    if python and not found:
        raise _nothing_to_ask(wanted, python)
    with asking(found):
        yield


def _wanted_runtimes(names: Iterable[str] | None, python: str) -> list[str]:
    """Return the runtimes to ask, such as ["vllm", "mlx-lm"], whether they are installed or not.

    Args:
        names: Runtimes that the user named; None for every one.
        python: The interpreter of another environment; empty for this one. In this one,
            transformers is not asked here: `apply` asks it about every output that it wrote.
    """
    can_be_asked = [askable.name for askable in ASKABLE]
    if not python:
        can_be_asked = list(BEFORE_WRITING)  # all but transformers
    if names is None:
        return can_be_asked
    named = {canonical(name) for name in names}
    return [name for name in can_be_asked if name in named]


def _nothing_to_ask(wanted: Sequence[str], python: str) -> UsageError:
    """The error for an interpreter in which none of the wanted runtimes is installed."""
    if wanted:
        problem = f"{' and '.join(wanted)} is not installed there"
    else:
        can_be_asked = ", ".join(askable.name for askable in ASKABLE)
        problem = f"none of the runtimes that can be asked ({can_be_asked}) is named"
    return UsageError(f"--python {python} asks a runtime, and {problem}")

"""`asking_installed`: installed runtimes say how they read a config, before any table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
        python: The interpreter of another environment; empty for this one, of which transformers
            is left out, since `apply` asks it about every output.
        tell: Called with a sentence before a runtime is started.

    Raises:
        UsageError: Where an interpreter is named, and nothing is asked in it.
    """
    wanted = list(BEFORE_WRITING)
    if python:
        wanted = [askable.name for askable in ASKABLE]
    if names is not None:
        named = {canonical(name) for name in names}
        wanted = [name for name in wanted if name in named]

    # nothing is imported where nothing could be asked
    packages = [askable.package for askable in ASKABLE if askable.name in wanted]
    if not python and not any(find_spec(package) for package in packages):
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
        if wanted:
            problem = f"{' and '.join(wanted)} is not installed there"
        else:
            can_be_asked = ", ".join(askable.name for askable in ASKABLE)
            problem = f"none of the runtimes that can be asked ({can_be_asked}) is named"
        raise UsageError(f"--python {python} asks a runtime, and {problem}")
    with asking(found):
        yield

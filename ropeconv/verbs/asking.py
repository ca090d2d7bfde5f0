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
    """Ask installed runtimes how they read a config, for all configs that a with block judges.

    Outside such a block, verdicts on configs come from tables in ropeconv.

    Args:
        names: The runtimes that the user named with `--runtime`; None for all runtimes.
        python: The interpreter of another environment in which runtimes are installed; empty for
            this environment.
        tell: Called with a sentence for the user before a runtime is started.

    Raises:
        UsageError: None of the runtimes is installed in the environment of `python`.
    """
    wanted = _wanted_runtimes(names, python)

    # If none of the packages is installed here, the modules that start runtimes are not imported.
    packages = [askable.package for askable in ASKABLE if askable.name in wanted]
    has_package_here = any(find_spec(package) for package in packages)
    if not python and not has_package_here:
        yield
        return
    from ..engines.probes.installed import find_installed

    installed_runtimes = []
    for name in wanted:
        installed = find_installed(name, python)
        if installed is not None:
            installed.tell = tell
            installed_runtimes.append(installed)
    if python and not installed_runtimes:
        raise _nothing_to_ask(wanted, python)
    with asking(installed_runtimes):
        yield


def _wanted_runtimes(names: Iterable[str] | None, python: str) -> list[str]:
    """Return the runtimes that ropeconv may ask about a config, such as ["vllm", "mlx-lm"].

    Args:
        names: The runtimes that the user named; None for all runtimes.
        python: The interpreter of another environment; empty for this environment.

    Returns:
        The names of runtimes, which need not be installed.
    """
    if python:
        askable_names = [askable.name for askable in ASKABLE]
    else:
        # All runtimes without transformers. In this environment, `apply` loads every output in
        # transformers after writing it.
        askable_names = list(BEFORE_WRITING)
    if names is None:
        return askable_names
    wanted = {canonical(name) for name in names}
    return [name for name in askable_names if name in wanted]


def _nothing_to_ask(wanted: Sequence[str], python: str) -> UsageError:
    """The error for an interpreter in which none of the wanted runtimes is installed."""
    if wanted:
        problem = f"{' and '.join(wanted)} is not installed there"
    else:
        can_be_asked = ", ".join(askable.name for askable in ASKABLE)
        problem = f"none of the runtimes that can be asked ({can_be_asked}) is named"
    return UsageError(f"--python {python} asks a runtime, and {problem}")

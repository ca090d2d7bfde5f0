"""Skip tests of torch, transformers, llama.cpp and other extras where these are absent, and say how
to get them; and tests of features whose folders were removed (`scripts/core_tests`).
"""

import importlib.util
import re
from collections import Counter
from collections.abc import Generator
from importlib.metadata import entry_points
from typing import Any

import pytest

from ropeconv.environment import MODEL_PACKAGES
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.features import GROUP, load_features

EXTRAS = {
    "llama_cpp": "llamacpp",
    "pandas": "pandas",
    "ray": "ray",
    "submitit": "slurm",
    "sentence_transformers": "test",
    "gradio": "ui",
    "httpx": "ui",
    "joserfc": "ui",
    "onnx": "graphs",
    "openvino": "graphs",
    "onnxruntime": "graphs",
    "onnxscript": "test",
}
"""Packages by the extra that brings them."""
MISSING = frozenset(
    name for name in (*MODEL_PACKAGES, *EXTRAS) if importlib.util.find_spec(name) is None
)
ADVICE = re.compile("pip install '?ropeconv")
REMOVED = sorted({entry.name for entry in entry_points(group=GROUP)} - load_features().keys())
"""Features that pyproject.toml names, and whose folders are not here."""
of_features = pytest.mark.skipif(bool(REMOVED), reason=f"without {', '.join(REMOVED)}")
"""A mark for tests of the core that look at what features add, in a way that is not seen."""
OF_FEATURES = re.compile("there is no command|needs a feature|module 'ropeconv' has no attribute")
"""What is said about what such a feature has."""


def skip(name: str) -> None:
    """Skips the test or module that needs a package."""
    package = f"'ropeconv[{EXTRAS[name]}]'" if name in EXTRAS else "ropeconv"
    pytest.skip(f"{name} is not installed; pip install {package}", allow_module_level=True)


def skip_feature() -> None:
    """Skips the test or module that needs a feature which was removed."""
    pytest.skip(f"without the features {', '.join(REMOVED)}", allow_module_level=True)


def skip_where_missing(problem: BaseException) -> None:
    """Skips where a failure says that an optional package is missing, and it is."""
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            package = cause.name.partition(".")[0]
            if package in MISSING:
                skip(package)
            if REMOVED and ".features" in cause.name:
                skip_feature()
        if isinstance(cause, RopeconvError | AttributeError):
            skip_where_advised(str(cause))
        cause = cause.__cause__ or cause.__context__


def skip_where_advised(message: str) -> None:
    """Skips where ropeconv says that an extra is to be installed, and a package of it is
    missing.
    """
    if REMOVED and OF_FEATURES.search(message):
        skip_feature()
    if MISSING and ADVICE.search(message):
        pytest.skip(next(line.strip() for line in message.splitlines() if ADVICE.search(line)))


class OptionalModule(pytest.Module):
    """A test module that may import what is not installed."""

    def _getobj(self) -> Any:
        try:
            return super()._getobj()
        except (self.CollectError, RopeconvError) as problem:
            skip_where_missing(problem)
            raise


def pytest_pycollect_makemodule(module_path: Any, parent: Any) -> pytest.Module | None:
    """Test modules are collected as such, where something is missing."""
    if MISSING or REMOVED:
        return OptionalModule.from_parent(parent, path=module_path)
    return None


def _guarded() -> Generator[None, Any, Any]:
    try:
        return (yield)
    except Exception as problem:
        skip_where_missing(problem)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fixtures may need what is missing."""
    return (yield from _guarded())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Tests may need what is missing."""
    return (yield from _guarded())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many tests of each folder were skipped, and what they need."""
    reasons = Counter[tuple[str, str]]()
    for report in terminalreporter.stats.get("skipped", ()):
        folder = "/".join(report.nodeid.split("::")[0].split("/")[:2])
        reasons[folder, str(report.longrepr[-1]).removeprefix("Skipped: ")] += 1
    if reasons:
        terminalreporter.section("skipped")
    for (folder, reason), count in sorted(reasons.items()):
        terminalreporter.write_line(
            f"{folder}: {count} {'test' if count == 1 else 'tests'}: {reason}"
        )

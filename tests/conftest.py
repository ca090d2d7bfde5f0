"""Fixtures: tiny checkpoints made once, one transformers process for all frequency checks, the
command line.
"""

import gc
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from ropeconv.engines.probe import Probe, SharedProbe

from .support.extent import pytest_collection_modifyitems, pytest_report_header
from .support.models import make
from .support.optional import (
    pytest_pycollect_makemodule,
    pytest_runtest_call,
    pytest_runtest_setup,
    pytest_terminal_summary,
    skip,
    skip_where_advised,
)

__all__ = [
    "pytest_collection_modifyitems",
    "pytest_pycollect_makemodule",
    "pytest_report_header",
    "pytest_runtest_call",
    "pytest_runtest_setup",
    "pytest_terminal_summary",
]

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["ROPECONV_MEMORY"] = "24GB"  # else what is shown depends on the machine
os.environ["ROPECONV_VALIDATE"] = "off"  # else every output is run once more after it was written
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # by nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")
DATA = Path(__file__).parent / "data"
CONFIGS = DATA / "configs"


def freeze() -> None:
    """Exempt what is alive from garbage collection: every walk through the objects of torch takes
    half a second.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """Freeze what the test modules have imported."""
    freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Freeze what the tests of a file have imported, after the last of them."""
    yield
    if nextitem is None or nextitem.path != item.path:
        freeze()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The tiny checkpoint of a model_type, made on first use."""
    root = tmp_path_factory.mktemp("models")

    def get(model_type: str) -> Path:
        folder = root / model_type
        return folder if folder.exists() else make(model_type, folder)

    return get


@pytest.fixture(autouse=True, scope="session")
def shared_probe() -> Iterator[SharedProbe]:
    """One process of transformers for all outputs that are made here; it starts with the first
    question.
    """
    shared = SharedProbe()

    class AnyProbe(type):
        """Every probe counts as one of the class, since `apply` checks the type of its argument."""

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, Probe)

    class OneProbe(Probe, metaclass=AnyProbe):
        def __new__(cls, *given: Any) -> Any:
            return Probe(*given) if given else shared

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ropeconv.engines.probe.Probe", OneProbe)
        patch.setattr("ropeconv.bake.apply.Probe", OneProbe)
        yield shared
    Probe.stop(shared)


@pytest.fixture(scope="session")
def probe(shared_probe: SharedProbe) -> SharedProbe:
    """The installed transformers, in a process of its own."""
    if not Probe.available():
        skip("transformers")
    return shared_probe


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A tiny Llama in a folder of the test's own, named `model`."""
    return make("llama", tmp_path / "model")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Answers and state of the tests stay among the tests; answers of transformers serve all
    processes of a run.
    """
    cache = tmp_path_factory.mktemp("cache")
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "checks"
    shared.mkdir(exist_ok=True)
    (cache / "ropeconv").mkdir()
    (cache / "ropeconv" / "checks").symlink_to(shared)
    os.environ["XDG_CACHE_HOME"] = str(cache)
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data"))


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """The command line in the process of the tests, in the test's folder."""
    from .support.in_process import command

    return partial(command, tmp_path)


@pytest.fixture
def process(tmp_path: Path) -> Run:
    """The command line in a process of its own, where its start, its streams or its environment
    matter.
    """
    return partial(run_in, tmp_path)


def run_in(
    folder: Path, *arguments: object, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The same in another folder, for fixtures that several tests share."""
    command = [sys.executable, "-m", "ropeconv", *map(str, arguments)]
    full = {**os.environ, **(env or {})}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=full, check=False
    )
    if done.returncode:
        skip_where_advised(done.stderr)
    return done


def hashes(folder: Path) -> dict[str, str]:
    """sha256 of every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }

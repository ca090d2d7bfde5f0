"""Processes that run tests in a copy of the repository: forked from one that has imported the heavy libraries."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

LIBRARIES = (
    "numpy", "pytest", "_pytest.assertion.rewrite", "hypothesis", "msgspec", "safetensors.numpy", "gguf", "typer",
    "rich.console", "jinja2", "mpmath", "tokenizers", "torch", "transformers",
)  # fmt: skip


def import_libraries() -> None:
    """Imports what most tests import, as far as it is installed; none of it starts threads."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("ROPECONV_TESTS_STORE", str(Path(__file__).parents[2] / ".cache" / "models"))
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def copy_of(root: Path, folder: Path) -> Path:
    """A copy of the files that git knows or would add, with compiled modules that are checked by their content."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, check=True, capture_output=True,
    ).stdout  # fmt: skip
    for name in listed.decode().split("\0"):
        if name and (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)
    compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "ropeconv", "tests"]
    subprocess.run(compiled, cwd=folder, check=False)
    return folder


def fork(root: Path, run: Callable[[], int], log: Path | None = None, **env: str) -> int:
    """Starts `run` in a process of its own process group, in a copy of the repository; returns its id.

    Args:
        root: The copy, which comes first where modules are looked for, also for processes that tests start.
        run: What to do; its value is the exit status.
        log: Where the output goes, else nowhere.
        env: More variables of the environment.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        os.setsid()
        out = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(out, stream)
        os.chdir(root)
        temporary = tempfile.mkdtemp(dir=root.parent)
        os.environ |= {"PYTHONPATH": str(root), "TMPDIR": temporary, "XDG_CACHE_HOME": temporary, **env}
        tempfile.tempdir = temporary
        sys.path.insert(0, str(root))
        code = run()
        shutil.rmtree(temporary, ignore_errors=True)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def kill(process: int) -> None:
    """Ends a process that `fork` started, and those it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)

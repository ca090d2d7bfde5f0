"""Whether llama.cpp loads a file, asked in a process of its own since llama.cpp ends that on some bad files."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from ...secrets import without_secrets
from .process import last_words

LONGEST = 300.0
"""Seconds; a file of 100 GB is loaded in some, on a disk of the network in tens."""
PROGRAM = """
import sys
import llama_cpp as llama
settings = llama.llama_model_default_params()
settings.use_mmap, settings.use_extra_bufts, settings.n_gpu_layers = True, False, 0
sys.exit(not llama.llama_model_load_from_file(sys.argv[1].encode(), settings))
"""


def available() -> bool:
    """Whether llama.cpp is installed."""
    return find_spec("llama_cpp") is not None


def why_not_loaded(path: Path) -> str:
    """What llama.cpp says where it does not load a file within `LONGEST` seconds, empty where it does.

    Weights are mapped and not read.
    """
    command, environment = [sys.executable, "-c", PROGRAM, str(path)], without_secrets()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=environment, timeout=LONGEST
        )
    except subprocess.TimeoutExpired:  # run() has killed it
        return f"it did not end within {LONGEST:g} seconds"
    return last_words(done.stderr, done.returncode) if done.returncode else ""

"""Whether llama.cpp runs a file, asked in a process of its own since llama.cpp ends that on some bad files."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from ...formats.copying import human
from ...formats.threads import cores
from .process import environment, last_words

LONGEST = 300.0
"""Seconds; a file of 100 GB is loaded in some, on a disk of the network in tens."""
LOADED, STOPPED = "loaded", "stopped: "
PROGRAM = f"""
import sys
import llama_cpp as llama

def stop(why):
    print("{STOPPED}" + why, flush=True)
    sys.exit(1)

settings = llama.llama_model_default_params()
settings.use_mmap, settings.use_extra_bufts, settings.n_gpu_layers = True, False, 0
model = llama.llama_model_load_from_file(sys.argv[1].encode(), settings)
if not model:
    sys.exit(1)
print("{LOADED}", flush=True)
if sys.argv[2] == "0":
    sys.exit()
settings = llama.llama_context_default_params()
settings.n_ctx, settings.n_batch, settings.n_ubatch = 256, 8, 8
settings.n_threads = settings.n_threads_batch = int(sys.argv[2])
context = llama.llama_init_from_model(model, settings)
if not context:
    stop("it makes no context for the model")
width = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
for tokens in [token % width for token in range(1, 5)], [5 % width]:
    given = (llama.llama_token * len(tokens))(*tokens)
    if llama.llama_decode(context, llama.llama_batch_get_one(given, len(tokens))) != 0:
        stop("it does not decode " + str(len(tokens)) + " tokens")
    logits = llama.llama_get_logits_ith(context, -1)[:width]
    if any(number != number for number in logits):
        stop("it computes NaN, as it does from weights that are too large for f16")
"""
"""Loads a file, and decodes four tokens together and one alone, which llama.cpp may compute in other ways."""


def available() -> bool:
    """Whether llama.cpp is installed."""
    return find_spec("llama_cpp") is not None


def why_not_run(path: Path) -> tuple[str, str]:
    """Why llama.cpp does not run a file, and why that is not known; both are empty where it decodes five tokens.

    Weights are mapped, and all are read twice. A file that is larger than the memory is only loaded, without its
    weights. After `LONGEST` seconds a file that was not loaded counts as one that cannot be, another one as not tried.
    """
    size, memory = path.stat().st_size, _memory()
    known = size <= memory
    command = [sys.executable, "-P", "-c", PROGRAM, str(path), str(cores() if known else 0)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=environment(),
            timeout=LONGEST,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:  # run() has killed it
        if LOADED.encode() not in bytes(late.stdout or b""):
            return f"it did not end within {LONGEST:g} seconds", ""
        return "", f"llama.cpp loaded the file and decoded no five tokens within {LONGEST:g} seconds"
    if done.returncode:
        return done.stdout.partition(STOPPED)[2].strip() or last_words(done.stderr, done.returncode), ""
    return "", "" if known else f"the file ({human(size)}) is larger than the memory, so llama.cpp only loaded it"


def _memory() -> int:
    """The memory of this machine in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

"""Quantises a GGUF file with llama.cpp's quantiser, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..errors import RopeconvError
from ..extras import require
from ..secrets import without_secrets

# name: number in llama.h's llama_ftype, bits per weight of a usual model
FTYPES: dict[str, tuple[int, float]] = {
    "q4_0": (2, 4.6), "q4_1": (3, 5.1), "q5_0": (8, 5.6), "q5_1": (9, 6.1), "q2_k": (10, 3.2), "q3_k_s": (11, 3.6),
    "q3_k_m": (12, 4.0), "q3_k_l": (13, 4.3), "q4_k_s": (14, 4.7), "q4_k_m": (15, 4.9), "q5_k_s": (16, 5.6),
    "q5_k_m": (17, 5.7), "q6_k": (18, 6.6), "iq4_nl": (25, 4.6), "iq4_xs": (30, 4.4), "iq3_s": (26, 3.5),
    "iq3_m": (27, 3.7),
}  # fmt: skip

PROGRAM = """
import sys
import llama_cpp as llama
settings = llama.llama_model_quantize_default_params()
settings.ftype = int(sys.argv[3])
sys.exit(llama.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), settings))
"""


def quantise(source: Path, target: Path, outtype: str) -> None:
    """Quantises a GGUF file to a new file.

    outtype: a key of FTYPES. Raises RopeconvError where llama.cpp is not installed or fails.
    """
    require("llama_cpp", f"--outtype {outtype}")
    command = [sys.executable, "-P", "-c", PROGRAM, str(source), str(target), str(FTYPES[outtype][0])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=without_secrets())
    if done.returncode != 0:
        said = [line.strip() for line in done.stderr.splitlines() if "error" in line.lower() or "fail" in line.lower()]
        raise RopeconvError(f"llama.cpp did not quantise to {outtype}: {(said or ['it said nothing'])[-1][:300]}")

"""Programs of llama.cpp, built from the sources of the bindings: the folder is in LLAMA_TOOLS."""

import os
import subprocess
from pathlib import Path

import pytest


def llama_tool(name: str, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run llama-quantize, llama-gguf-split or llama-imatrix. Skips where it is not built."""
    folder = os.environ.get("LLAMA_TOOLS")
    tool = Path(folder or "", name)
    if not folder or not tool.exists():
        pytest.skip(f"set LLAMA_TOOLS to a folder with llama.cpp's {name}")
    command = [str(tool), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)

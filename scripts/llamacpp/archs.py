"""Writes tests/data/llamacpp_archs.json: what llama.cpp's architectures do with RoPE, from its
sources.

    python -m scripts.llamacpp.archs --sources DIR --commit HASH

DIR is a checkout of llama.cpp, or vendor/llama.cpp of llama-cpp-python's sdist.
tests/runtimes/test_arch_digest.py compares the table of the package with that file.
"""

import argparse
import json
from pathlib import Path

from .digest import read_digest

OUT = Path(__file__).parents[2] / "tests" / "data" / "llamacpp_archs.json"


def main() -> None:
    """Read the digest of every architecture from llama.cpp's sources, and write it as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sources", type=Path, required=True, help="the root of llama.cpp's sources"
    )
    parser.add_argument(
        "--commit", required=True, help="the commit of these sources, which the file names"
    )
    given = parser.parse_args()
    record = {"commit": given.commit, "archs": read_digest(given.sources)}
    OUT.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", "utf-8")
    print(f"{len(record['archs'])} architectures in {OUT.name}")


if __name__ == "__main__":
    main()

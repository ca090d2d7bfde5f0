"""Measures time and memory, most of them as ratios to `cp` or to another program in the same run.

start    CPU of commands that do little: `--help`, `inspect` of a config, a plan
alternatives  what people do instead of `ropeconv apply`, for the table of README.md
apply    `ropeconv apply` on a checkpoint of several gigabytes beside `cp -r`
gguf     patches of GGUF files beside `cp`; conversions beside llama.cpp's converter
bound    the bound of a base beside the published algorithm
eval     `ropeconv eval`: changing rows, its estimate, and its memory
run      a thousand repositories published on a Hub of this machine; plans of 1T parameters
validate  `ropeconv validate` beside two bare forward passes over the same tokens
memory   the memory of ten models in transformers, llama.cpp and vLLM beside the predicted one
tune     what each search of `ropeconv tune` finds on held-out text, and how long it takes
"""

import importlib
import os
import sys

MODULES = {"eval": "evaluation"}


def main() -> None:
    """Run the benchmark that the first argument names."""
    lines = (__doc__ or "").splitlines()[2:]
    names = [line.split()[0] for line in lines if line]
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        sys.exit("\n".join(["scripts/bench NAME [OPTIONS]", *lines]))
    name = sys.argv.pop(1)
    os.environ["ROPECONV_VALIDATE"] = "off"  # a copy is not validated either
    sys.argv[0] = f"scripts/bench {name}"
    importlib.import_module(f".{MODULES.get(name, name)}", __package__).main()


main()

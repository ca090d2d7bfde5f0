"""Drafts the file of a model family from the installed transformers, and says which model types are
still unknown.

    python -m scripts.families MODEL_TYPE
    python -m scripts.families --check
    python -m scripts.families --unknown
    python -m scripts.families --keys

The first prints the TOML of a family as far as its classes say it: what they are, config defaults,
layout, layer types, windows, names of projections and norms. A person finishes it, and reads the
classes. For a family that is there, it says below that where the draft and the file disagree, and
then it exits with 1.

`--check` lists the model types that rotate: known, with their family; refused, with the reason; or
unknown, and then it exits with 1. `--unknown` prints only the names of the unknown ones.

`--keys` writes the keys of the config classes of all families anew, by which `ropeconv` suggests a
family for an unknown model type, those about RoPE that they compute with, and what they compute
where a key is null: do that with every new family.
"""

import argparse
import logging
import sys
import warnings
from collections import Counter

from ropeconv.features.derivation.description import render
from ropeconv.models.registry import by_model_type

from . import config_keys, null_keys, rope_keys
from .compare import disagreements
from .draft import draft
from .walk import walk


def main() -> int:
    """Answer the command line.

    Returns:
        1 where a model type is unknown, or a draft and the file of its family disagree; else 0.
    """
    parser = argparse.ArgumentParser(
        prog="python -m scripts.families",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model_type", nargs="?", help="whose family to draft")
    parser.add_argument("--check", action="store_true", help="list every model type that rotates")
    parser.add_argument(
        "--unknown", action="store_true", help="print the names of those that are unknown"
    )
    parser.add_argument(
        "--keys",
        action="store_true",
        help="write config_keys.json, rope_keys.json and null_keys.json of ropeconv/models anew",
    )
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    if given.model_type:
        return show(given.model_type)
    if given.keys:
        config_keys.FILE.write_text(config_keys.text(), "utf-8")
        rope_keys.FILE.write_text(rope_keys.text(), "utf-8")
        null_keys.FILE.write_text(null_keys.text(), "utf-8")
        return 0
    if not given.check and not given.unknown:
        parser.error("give a model type, --check, --unknown or --keys")
    return check(names_only=given.unknown)


def show(model_type: str) -> int:
    """Prints the draft of a model type. Returns 1 where its family says something else."""
    try:
        facts = draft(model_type)
    except ValueError as problem:
        listing = "`python -m scripts.families --check` lists the model types that rotate"
        sys.exit(f"{problem}; {listing}")
    sys.stdout.write(render(facts))
    family = by_model_type().get(model_type)
    wrong = disagreements(family, facts) if family else []
    sys.stdout.write("".join(f"# {sentence}\n" for sentence in wrong))
    return int(bool(wrong))


def check(names_only: bool) -> int:
    """Print each model type that rotates and its state in ropeconv. Return 1 if one is unknown.

    Args:
        names_only: Print only the names of unknown types.
    """
    rotating = [state for state in walk() if state.rotates]
    unknown = [state.name for state in rotating if state.state == "unknown"]
    if names_only:
        for name in unknown:
            print(name)
        return 0
    for state in rotating:
        print(f"{state.name:40} {state.state:8} {state.detail}")
    counts = Counter(state.state for state in rotating)
    summary = ", ".join(f"{counts[key]} {key}" for key in sorted(counts))
    print(f"{len(rotating)} rotate: {summary}")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())

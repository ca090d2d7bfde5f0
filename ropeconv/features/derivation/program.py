"""A program that derives the family of a model from its class, in a process of its own.

It answers a line of JSON on stdin by a line on stdout: {"path": folder, "own": false} asks about
the config.json in a folder. "own" runs the modelling file in that folder, which the caller trusts.
The answer has the fields of `facts.Answer` and the class that was run, or {"error": sentence}.
"""

from __future__ import annotations

import gc

gc.disable()  # a quarter of the time of the imports

import contextlib
import copy
import dataclasses
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3]))
from ropeconv.engines.probe_program import class_of, open_answers
from ropeconv.loader import load_class, load_config
from ropeconv.models.parts import text_path
from ropeconv.rope.errors import RopeconvError


def main() -> None:
    """Answer the questions on stdin until it ends."""
    answers = open_answers()
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()

    for line in sys.stdin:
        question = json.loads(line)
        answer = ask(Path(question["path"]), bool(question.get("own")))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        gc.collect()  # the modules of a model refer to each other
    answers.close()
    os._exit(0)  # interpreter shutdown takes half a second after these imports


def end_with(caller: int) -> None:
    """End the process when its caller has ended, also in the middle of a run."""
    while os.getppid() == caller:
        time.sleep(1)
    os._exit(1)


def ask(folder: Path, own: bool) -> dict[str, Any]:
    """Return what the class of a model says about its family, or why nothing is known."""
    from transformers import PreTrainedModel, __version__

    from ropeconv.features.derivation.facts import derive
    from ropeconv.features.derivation.older_names import OlderNames

    known: dict[str, Any] = {"transformers": str(__version__), "class": ""}
    PreTrainedModel.init_weights = lambda self: None
    try:
        older = OlderNames() if own else None
        if older is None:
            subject, name = find(folder, own)
        else:
            subject, name = older.find(lambda: find(folder, own))
        known["class"] = name
        answer = dataclasses.asdict(derive(subject))
        if older is not None and older.replaced:
            answer["not_derived"].append(older.describe())
    except RopeconvError as problem:
        return {**known, "error": str(problem)}
    except Exception as problem:  # of any kind, from the class of a model
        first = str(problem).partition("\n")[0][:300]
        return {**known, "error": f"its class cannot be run ({type(problem).__name__}: {first})"}
    return {**known, **answer}


def find(folder: Path, own: bool) -> tuple[Any, str]:
    """Return the model in a folder, and the name of the class of its text model."""
    from ropeconv.features.derivation.asked_model import AskedModel, text_of

    whole = json.loads((folder / "config.json").read_bytes())
    config = load_config(folder, trust=own)
    path = text_path(whole)

    def make(content: dict[str, Any]) -> Any:
        return type(config).from_dict(copy.deepcopy(content))

    text = text_of(make(whole))
    if own:
        classes = getattr(config, "auto_map", None) or {}
        auto = next(name for name in ("AutoModelForCausalLM", "AutoModel") if name in classes)
        own_class = load_class(config, auto, folder)
        return AskedModel(whole, make, lambda text: own_class, path), own_class.__name__
    name = class_of(text).__name__
    with contextlib.suppress(Exception):
        name = with_head(text) or name
    return AskedModel(whole, make, class_of, path), name


def with_head(text: Any) -> str:
    """Return the name of the class that computes logits; empty without one."""
    from transformers import AutoModelForCausalLM

    if type(text) not in AutoModelForCausalLM._model_mapping:
        return ""
    return str(AutoModelForCausalLM._model_mapping[type(text)].__name__)


if __name__ == "__main__":
    main()

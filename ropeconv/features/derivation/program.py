"""A program that derives the family of a model from its class, in a process of its own.

It answers a line of JSON on stdin by a line on stdout: {"path": folder, "own": false} asks about
the config.json in a folder. "own" runs the modelling file in that folder, which the caller trusts.
The answer has the fields of `facts.Answer`, the version of transformers and the class that was run;
in place of the fields it has "error", a sentence, where there are none.
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
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).parents[3]))
from ropeconv.engines.probe_program import class_of, open_answers
from ropeconv.loader import load_class, load_config
from ropeconv.models.parts import text_path
from ropeconv.rope.errors import RopeconvError

if TYPE_CHECKING:
    from ropeconv.features.derivation.asked_model import AskedModel


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


def ask(folder: Path, own_code: bool) -> dict[str, Any]:
    """Return the family of a model, derived by running its class, or {"error": why there is none}.

    Args:
        folder: The folder with its config.json.
        own_code: Whether to run the modelling file in the folder, in place of transformers' class.

    Returns:
        The fields of the family, the version of transformers, and the name of the class.
    """
    from transformers import PreTrainedModel, __version__

    from ropeconv.features.derivation.facts import derive
    from ropeconv.features.derivation.older_names import OlderNames

    # transformers would fill weights with random numbers, and models here have none
    PreTrainedModel.init_weights = lambda self: None

    # these are in the answer after an error too, the class as soon as it is found
    known: dict[str, Any] = {"transformers": str(__version__), "class": ""}
    try:
        if own_code:
            # code for transformers 4 may import names that version 5 does not have
            older_names = OlderNames()
            subject, known["class"] = older_names.find(lambda: find_own_model(folder))
        else:
            older_names = None
            subject, known["class"] = find_model(folder)

        answer = dataclasses.asdict(derive(subject))
        if older_names is not None and older_names.replaced:
            answer["not_derived"].append(older_names.describe())
    except RopeconvError as problem:
        return {**known, "error": str(problem)}
    except Exception as problem:  # of any kind, from the class of a model
        first_line, _, _ = str(problem).partition("\n")
        reason = f"{type(problem).__name__}: {first_line[:300]}"
        return {**known, "error": f"its class cannot be run ({reason})"}
    return {**known, **answer}


def find_model(folder: Path) -> tuple[AskedModel, str]:
    """Return the model of a class of transformers, and the name of that class.

    The class that is run need not have the head that computes logits; people know the one with it,
    so the name is that of LlamaForCausalLM rather than LlamaModel.

    Args:
        folder: The folder with its config.json.

    Raises:
        NotDerivable: The class of a model for images and text finds no settings of its text model.
    """
    from ropeconv.features.derivation.asked_model import AskedModel, NotDerivable, text_of

    whole = json.loads((folder / "config.json").read_bytes())
    make = config_maker(load_config(folder, trust=False))
    config = make(whole)
    text = text_of(config)

    # A class whose config has one of a text model inside reads that from "text_config" of
    # config.json, or for a few from the top level. Without either it would run with its defaults.
    path_in_json = text_path(whole)  # ("text_config",), or empty
    has_text_inside = text is not config
    if has_text_inside and not path_in_json and not reads_top_level(make, whole):
        raise NotDerivable(
            "it reads its text model from an object in config.json, as text_config, which is not"
            " there, so that it computes its defaults"
        )

    name = class_of(text).__name__
    with contextlib.suppress(Exception):  # the name is only for people
        name = name_with_head(text) or name
    return AskedModel(whole, make, class_of, path_in_json), name


def reads_top_level(make: Callable[[dict[str, Any]], Any], whole: dict[str, Any]) -> bool:
    """Whether a class fills its text config from the top level of config.json, as Qwen2-VL's."""
    from ropeconv.features.derivation.asked_model import text_of

    layers = 7  # a number that the class does not have as its default
    try:
        return bool(
            text_of(make({**whole, "num_hidden_layers": layers})).num_hidden_layers == layers
        )
    except Exception:  # of any kind, from the class
        return False


def find_own_model(folder: Path) -> tuple[AskedModel, str]:
    """Return the model of the modelling file in its folder, and the name of its class."""
    from ropeconv.features.derivation.asked_model import AskedModel, text_of

    whole = json.loads((folder / "config.json").read_bytes())
    config = load_config(folder, trust=True)
    make = config_maker(config)
    text_of(make(whole))  # raises where the class cannot make its config
    named = getattr(config, "auto_map", None) or {}
    auto_class = next(name for name in ("AutoModelForCausalLM", "AutoModel") if name in named)
    own_class = load_class(config, auto_class, folder)
    return AskedModel(whole, make, lambda text: own_class, text_path(whole)), own_class.__name__


def config_maker(config: Any) -> Callable[[dict[str, Any]], Any]:
    """Return a function that makes a config of the same class from the content of a config.json."""

    def make(content: dict[str, Any]) -> Any:
        return type(config).from_dict(copy.deepcopy(content))

    return make


def name_with_head(text: Any) -> str:
    """Return the name of the class that computes logits for a config; empty without one."""
    from transformers import AutoModelForCausalLM

    if type(text) not in AutoModelForCausalLM._model_mapping:
        return ""
    return str(AutoModelForCausalLM._model_mapping[type(text)].__name__)


if __name__ == "__main__":
    main()

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
    """Read questions from stdin, one JSON object a line, and write an answer to each to stdout.

    {"path": "/models/x", "own": true} asks for the family of the model in a folder. "own" says
    whether to run the modelling file in the folder, and not the class of transformers.
    """
    answers = open_answers()  # stdout; what libraries print goes to stderr from here on
    caller = os.getppid()
    threading.Thread(target=end_with_caller, args=(caller,), daemon=True).start()

    for line in sys.stdin:
        question = json.loads(line)
        runs_own_code = bool(question.get("own"))
        answer = ask(Path(question["path"]), runs_own_code)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        gc.collect()  # the modules of a model refer to each other
    answers.close()
    os._exit(0)  # interpreter shutdown takes half a second after these imports


def end_with_caller(caller: int) -> None:
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

    # models here have no weights, which transformers would fill with random numbers
    PreTrainedModel.init_weights = lambda self: None

    # what was run, which is in every answer; the class is "" if an error comes before it is found
    what_was_run: dict[str, Any] = {"transformers": str(__version__), "class": ""}
    older_names = None
    try:
        if own_code:
            # Code for transformers 4 may import names that version 5 does not have. They are
            # replaced, and the import is repeated, until it succeeds.
            older_names = OlderNames()
            subject, class_name = older_names.find(lambda: find_own_model(folder))
        else:
            subject, class_name = find_model(folder)
        what_was_run["class"] = class_name

        answer = dataclasses.asdict(derive(subject))
        if older_names is not None and older_names.replaced:
            answer["not_derived"].append(older_names.describe())
    except RopeconvError as problem:
        return {**what_was_run, "error": str(problem)}
    except Exception as problem:  # of any kind, from the class of a model
        first_line, _, _ = str(problem).partition("\n")
        reason = f"{type(problem).__name__}: {first_line[:300]}"
        return {**what_was_run, "error": f"its class cannot be run ({reason})"}
    return {**what_was_run, **answer}


def find_model(folder: Path) -> tuple[AskedModel, str]:
    """Return a model that transformers has a class for, and the name of the class.

    The class that is run has no head for logits, such as LlamaModel. The name is the better known
    name of the class with the head, such as "LlamaForCausalLM".

    Args:
        folder: The folder with config.json.

    Raises:
        NotDerivable: config.json has no settings of the text model where its class reads them.
    """
    from ropeconv.features.derivation.asked_model import (
        AskedModel,
        NotDerivable,
        prepare_text_config,
    )

    # `make_config` makes a config of transformers, such as a LlamaConfig, from a dictionary
    config_json = json.loads((folder / "config.json").read_bytes())
    make_config = config_maker(load_config(folder, trust=False))
    config = make_config(config_json)
    text_config = prepare_text_config(config)

    # A model for images and text: its config has the config of a text model inside, which most
    # classes read from the object "text_config" of config.json, and a few from the top level. Where
    # that object is missing, most classes would use their defaults, so the model is refused.
    path_in_json = text_path(config_json)  # ("text_config",), or empty
    has_text_inside = text_config is not config
    lacks_text_object = has_text_inside and not path_in_json
    if lacks_text_object and not reads_top_level(make_config, config_json):
        raise NotDerivable(
            "it reads its text model from an object in config.json, as text_config, which is not"
            " there, so that it computes its defaults"
        )

    # `class_of` returns the class of transformers for a config
    name = class_of(text_config).__name__
    with contextlib.suppress(Exception):  # a failure does not matter: the name is only shown
        name = name_with_head(text_config) or name
    model = AskedModel(
        config_json=config_json, make=make_config, model_class=class_of, text_path=path_in_json
    )
    return model, name


def reads_top_level(
    make_config: Callable[[dict[str, Any]], Any], config_json: dict[str, Any]
) -> bool:
    """Whether a class fills its text config from the top level of config.json, as Qwen2-VL's."""
    from ropeconv.features.derivation.asked_model import prepare_text_config

    layers = 7  # a number that the class does not have as its default
    try:
        config = make_config({**config_json, "num_hidden_layers": layers})
        return bool(prepare_text_config(config).num_hidden_layers == layers)
    except Exception:  # of any kind, from the class
        return False


def find_own_model(folder: Path) -> tuple[AskedModel, str]:
    """Return a model with the class of the modelling file in its folder, and the name of the class.

    Args:
        folder: The folder with config.json and the modelling file, whose code is run.
    """
    from ropeconv.features.derivation.asked_model import AskedModel, prepare_text_config

    # `make_config` makes a config of the model's own class from a dictionary. It is called once
    # here, so that an error in the code of the model is raised now.
    config_json = json.loads((folder / "config.json").read_bytes())
    config = load_config(folder, trust=True)
    make_config = config_maker(config)
    prepare_text_config(make_config(config_json))

    # auto_map has the classes of the model's own code: {"AutoModel": "modeling_x.XModel"}
    auto_map = getattr(config, "auto_map", None) or {}
    auto_class = next(name for name in ("AutoModelForCausalLM", "AutoModel") if name in auto_map)
    own_class = load_class(config, auto_class, folder)

    def return_own_class(text_config: Any) -> Any:
        """Return the class that runs a config of the text model: always the same one."""
        return own_class

    model = AskedModel(
        config_json=config_json,
        make=make_config,
        model_class=return_own_class,
        text_path=text_path(config_json),
    )
    return model, own_class.__name__


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

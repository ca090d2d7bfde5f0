"""What `train-config` prints: as each trainer reads it, at the whole context, with nothing that
scales RoPE again.
"""

import ast
import itertools
import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ropeconv import RopeconvError
from ropeconv.features.training.command import trainer_names
from ropeconv.features.training.training import (
    Trainer,
    TrainingFacts,
    baked_output,
    make_snippet,
    trainers,
)
from ropeconv.models.open import open_source
from ropeconv.rope.forms import Form, InterpolatedForm, Llama3, LongRope, Plain, Yarn
from ropeconv.rope.recipe import parse_recipe
from ropeconv.rope.spec import RopeSpec
from ropeconv.runtimes.runtime import runtimes

from ...conftest import CONFIGS
from ...support.baking import apply, make_plan
from ...support.in_process import command
from ...support.models import make

yaml = pytest.importorskip("yaml")
TEMPLATES = Path(__file__).parents[3] / "templates" / "training"
SPEC = RopeSpec(
    128, 128, Yarn(1e6, 4.0, 32768), 32768, 131072, attention_factor=1 + 0.1 * math.log(4)
)
BAKED = TrainingFacts(
    path="./Qwen3-8B-yarn4",
    method="yarn",
    context=131072,
    trained=32768,
    model_type="qwen3",
    spec=SPEC,
    two_lists=False,
    own_code=False,
    encoder=False,
    verdicts={},
)
TWO_LISTS = LongRope(1e6, (1.0,) * 64, (4.0,) * 64, 32768)
READERS = [trainer for trainer in trainers().values() if not trainer.formulas]
"""Trainers that take RoPE from config.json."""
of_each = pytest.mark.parametrize("trainer", trainers().values(), ids=lambda trainer: trainer.name)


def baked(status: str = "exact", **changes: Any) -> TrainingFacts:
    same = dict.fromkeys([row.key for row in runtimes()], (status, "it computes other frequencies"))
    return replace(BAKED, verdicts=same, **changes)


def with_form(form: Form, **changes: Any) -> TrainingFacts:
    """A baked checkpoint with another form. changes: of its spec."""
    return baked(spec=replace(SPEC, form=form, **{"attention_factor": 1.0, **changes}))


def settings(trainer: Trainer, text: str) -> tuple[dict[str, Any], Any]:
    """The options of a snippet, keys of YAML or keyword arguments of the calls in Python, and its
    model.
    """
    if trainer.file.endswith(".sh"):
        flags = shlex.split(text[text.index("(\n") + 2 : text.rindex(")")], comments=True)
        options: dict[str, Any] = {
            word: after for word, after in itertools.pairwise([*flags, ""]) if word.startswith("--")
        }
        return options, [json.loads(re.findall(r'convert ("(?:[^"\\]|\\.)*")', text)[0])]
    if not trainer.file.endswith(".py"):
        document = yaml.safe_load(text)
        return document, [document.get("base_model") or document.get("model_name_or_path")]
    nodes = list(ast.walk(ast.parse(text)))
    words = [kwarg for node in nodes if isinstance(node, ast.Call) for kwarg in node.keywords]
    options = {
        kwarg.arg: kwarg.value.value
        for kwarg in words
        if kwarg.arg and isinstance(kwarg.value, ast.Constant)
    }
    return options, [node.value for node in nodes if isinstance(node, ast.Constant)]


@of_each
def test_the_length_is_the_context_and_nothing_scales_rope(trainer: Trainer) -> None:
    snippet = make_snippet(trainer, baked())
    given, models = settings(trainer, snippet.text)
    assert "./Qwen3-8B-yarn4" in models
    assert (int(given[trainer.length]), snippet.notes) == (131072, ())
    assert (
        trainer.file in trainer.command
        or f"from {Path(trainer.file).stem} import " in trainer.command
    )
    if trainer in READERS:
        assert given["output_dir"] == "Qwen3-8B-yarn4-trained"
        scaling = {
            "rope_scaling",
            "rope_parameters",
            "overrides_of_model_config",
            "model_init_kwargs",
        }
        assert not {*scaling, "trust_remote_code"} & given.keys()


@of_each
def test_a_model_with_its_own_code_is_trusted_or_refused(trainer: Trainer) -> None:
    if trainer.no_code:
        with pytest.raises(RopeconvError, match=re.escape(trainer.no_code)):
            make_snippet(trainer, baked(own_code=True))
    else:
        text = make_snippet(trainer, baked(own_code=True)).text
        assert settings(trainer, text)[0]["trust_remote_code"] is True


@pytest.mark.parametrize("path", ['a "b" \\ c', "it's", "x\n- y: z", "ü: #"])
@of_each
def test_any_path_stays_one_value(trainer: Trainer, path: str) -> None:
    assert path in settings(trainer, make_snippet(trainer, baked(path=path)).text)[1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"encoder": True}, "is an encoder"),
        ({"model_type": "gemma2"}, "for gemma2 does not support the rope type yarn"),
        ({"two_lists": True, "spec": replace(SPEC, form=TWO_LISTS)}, "uses the short list"),
    ],
)
def test_unsloth_refuses_what_it_would_train_otherwise(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RopeconvError, match=reason) as refused:
        make_snippet(trainers()["unsloth"], baked(**changes))
    named = {name for name in trainers() if f"--for {name}" in str(refused.value)}
    able = {
        trainer.name for trainer in (READERS if "two_lists" in changes else trainers().values())
    }
    assert named == (set() if "encoder" in changes else able - {"unsloth"})
    assert make_snippet(
        trainers()["unsloth"], replace(with_form(Plain(1e4)), model_type="gemma2")
    ).text


@pytest.mark.parametrize(
    ("name", "made_from", "reason"),
    [
        (
            "megatron",
            with_form(TWO_LISTS),
            "options for default, linear, llama3, yarn, not for longrope",
        ),
        (
            "megatron",
            with_form(Plain(4088994.25)),
            "option for theta takes whole numbers, and .* has 4088994.25",
        ),
        (
            "megatron",
            with_form(InterpolatedForm(1e4, 2.5)),
            "option for factor takes whole numbers, and .* has 2.5",
        ),
        (
            "megatron",
            with_form(Llama3(5e5, 4.0, 8192)),
            "its llama3 has factor = 8, and this checkpoint 4",
        ),
        (
            "nemo",
            with_form(Llama3(5e5, 4.0, 4096)),
            "its llama3 has original_context = 8192, and this checkpoint 4096",
        ),
        (
            "nemo",
            with_form(SPEC.form, rotary_dim=64),
            "rotates whole heads, and this model 64 of 128 dimensions",
        ),
        ("nemo", with_form(SPEC.form, layout="interleaved"), "this model rotates otherwise"),
        ("nemo", with_form(SPEC.form, local_form=Plain(1e4)), "this model rotates otherwise"),
        (
            "megatron",
            with_form(SPEC.form, layers=("none", "global")),
            "this model rotates otherwise",
        ),
        ("nemo", baked(model_type="mistral"), "for mistral does not support the rope type yarn"),
    ],
)
def test_what_no_option_expresses_is_refused(
    name: str, made_from: TrainingFacts, reason: str
) -> None:
    with pytest.raises(RopeconvError, match=reason):
        make_snippet(trainers()[name], made_from)


@pytest.mark.parametrize("trainer", READERS, ids=lambda trainer: trainer.name)
def test_what_its_transformers_does_not_compute_is_refused(trainer: Trainer) -> None:
    with pytest.raises(
        RopeconvError, match=r"transformers.* does not compute it \(ignored: it computes other"
    ) as no:
        make_snippet(trainer, replace(with_form(TWO_LISTS), verdicts=baked("ignored").verdicts))
    assert "apply --explain" in str(no.value)


@pytest.mark.parametrize(
    ("made_from", "note"),
    [(BAKED, "was not tested with this"), (baked(two_lists=True), "within 32,768 tokens")],
)
def test_a_note_says_what_to_know(made_from: TrainingFacts, note: str) -> None:
    (sentence,) = make_snippet(trainers()["trl"], made_from).notes
    assert re.search(note, sentence)


def test_the_verdict_is_that_of_the_version_that_the_trainer_brings() -> None:
    rows = [row for row in runtimes() if row.name == "transformers"]
    old = next(row for row in rows if row.covers("5.16.1"))
    assert old is not rows[-1]
    facts = replace(BAKED, verdicts={old.key: ("differs", "x"), rows[-1].key: ("exact", "")})
    assert [facts.verdict(version)[0] for version in ("5.16.1", "", "9.1")] == [
        "differs",
        "exact",
        "unknown",
    ]


def test_every_trainer_has_a_name_and_a_template() -> None:
    assert trainer_names() == tuple(trainers())
    files = {f"{trainer.file}.jinja" for trainer in trainers().values()}
    assert {path.name for path in TEMPLATES.iterdir()} == files


@of_each
def test_a_statement_has_a_line_or_was_executed_with_a_transformers_that_is_known(
    trainer: Trainer,
) -> None:
    assert any(fact.run for fact in trainer.facts)
    for fact in trainer.facts:
        assert fact.run or re.fullmatch(r"\S+\.py(:\d+)?(, \S+\.py:\d+)*", fact.source), fact
    assert all(re.fullmatch(r"\S+\.py:\d+", rotary.source) for rotary in trainer.rotary)
    rows = [row for row in runtimes() if row.name == "transformers"]
    assert not trainer.transformers or any(row.covers(trainer.transformers) for row in rows)


@pytest.mark.parametrize("times", [2, 4, 64])
def test_a_config_says_how_much_training_the_plan_says(times: int, tmp_path: Path) -> None:
    model = CONFIGS / "Qwen--Qwen2.5-7B-Instruct.json"
    plan = make_plan(model, parse_recipe(f"yarn:{times}"), out=tmp_path / "out")
    snippet = make_snippet(trainers()["unsloth"], baked_output(open_source(str(apply(plan)))))
    need = plan.fine_tuning
    said = snippet.to_dict()["fine_tuning"]
    assert (said["level"], said["factor"]) == (need.level, times)
    assert any(need.times in note for note in snippet.notes)


@pytest.mark.parametrize("both_directions", [True, False])
def test_an_encoder_made_of_a_decoder_is_not_trained_on_the_next_token(
    both_directions: bool, tmp_path: Path
) -> None:
    """EmbeddingGemma is a Gemma 3 with this key, which `advise` offers no training for either."""
    model = make("gemma3_text", tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    config["use_bidirectional_attention"] = both_directions
    (model / "config.json").write_text(json.dumps(config))
    line = ("apply", model, "--linear", 4, "-o", "out", "--validate", "off")
    screen = command(tmp_path, *line, code=0).stdout
    assert ("Train: " in screen) is not both_directions
    done = command(tmp_path, "train-config", "out", "--for", "axolotl")
    assert (done.returncode != 0, "encoder" in done.stderr) == (both_directions, both_directions)

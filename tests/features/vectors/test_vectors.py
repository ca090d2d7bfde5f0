"""`vectors`: a packet's own test passes a right engine, and names the mistake of a wrong one.

A mistake is planted in the files of the packet's model, or given to llama.cpp as an override, so
that an engine makes it by its own code. The test file runs in a Python that has numpy alone.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.numpy

import ropeconv
from ropeconv.engines.transformers.load import DeviceSpec, load_stock
from ropeconv.features.vectors import check_rope
from ropeconv.features.vectors.tiny import shapes
from ropeconv.rope.forms import Plain
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.spec import RopeSpec
from scripts.vectors import building

from ...support.baking import recipe_of
from ...support.in_process import command
from ...support.models import make
from ..identify.test_identify import exchange_pairs, rope, scale_local_layers
from ..servers.stand_in import StandIn, running

BETAS = Recipe(ropeconv.METHODS["yarn"](8.0, beta_fast=4.0, beta_slow=0.5))
LONGROPE = Recipe(
    ropeconv.METHODS["longrope"](
        long_factor=tuple(np.linspace(1, 12, 32).tolist()),
        short_factor=tuple(np.linspace(1, 2, 32).tolist()),
    ),
    context=512,
)
PACKETS: dict[str, tuple[str, Recipe]] = {
    "llama": ("llama", BETAS),
    "gemma": ("gemma3_text", recipe_of("yarn", 8.0)),
    "phi": ("phi", recipe_of("yarn", 8.0)),
    "mistral": ("mistral", recipe_of("yarn", 8.0)),
    "longrope": ("llama", LONGROPE),
}
"""An architecture and a recipe by the name of a packet."""


class Made(NamedTuple):
    """Folders of packets, made when they are first asked for."""

    folder: Path

    def __call__(self, name: str) -> Path:
        place = self.folder / name
        if not place.exists():
            family, recipe = PACKETS[name]
            ropeconv.vectors(family, recipe, place)
        return place


@pytest.fixture(scope="module")
def packet(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("packets"))


@pytest.fixture(scope="module")
def only_numpy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which numpy can be imported, and nothing else."""
    folder = tmp_path_factory.mktemp("site")
    installed = Path(np.__file__).parent
    for name in ("numpy", "numpy.libs"):
        if (installed.parent / name).exists():
            (folder / name).symlink_to(installed.parent / name)
    return folder


class Printed(NamedTuple):
    """What a packet's test prints, with its exit code."""

    code: int
    text: str

    @property
    def fits(self) -> list[str]:
        return list(json.loads(self.text)["fits"])


Check = Callable[..., Printed]
PROGRAM = """
import importlib.util, runpy, sys
sys.path.append(sys.argv[1])
assert importlib.util.find_spec("torch") is None, "this Python has more than numpy"
sys.argv[:2] = []
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def check(only_numpy: Path, tmp_path: Path) -> Check:
    def run(folder: Path, *words: object, code: int | None = None) -> Printed:
        script = folder / "check_rope.py"
        line = [sys.executable, "-I", "-S", "-c", PROGRAM, only_numpy, script, *words]
        done = subprocess.run(
            [str(word) for word in line], capture_output=True, text=True, cwd=tmp_path
        )
        printed = Printed(done.returncode, done.stdout.strip() or done.stderr.strip())
        assert code is None or done.returncode == code, printed
        return printed

    return run


def logits_of(model: Path, packet: Path, place: Path, dtype: str = "float32") -> Path:
    """Save what the stock class of transformers computes from a model, as .npz by prompt."""
    import torch

    loaded = load_stock(model, DeviceSpec("cpu", dtype))
    arrays = {}
    for prompt in json.loads((packet / "packet.json").read_text())["prompts"]:
        with torch.no_grad():
            logits = loaded(torch.tensor([prompt["ids"]]), use_cache=False).logits
        arrays[prompt["name"]] = logits[0].float().numpy()
    np.savez(place, **arrays)
    return place


def planted(packet: Path, place: Path, plant: Callable[[Path], None]) -> Path:
    """Copy the model of a packet, with a mistake."""
    shutil.copytree(packet / "model", place)
    plant(place)
    return place


def keys(**changes: Any) -> Callable[[Path], None]:
    """Set keys at the top of a config."""

    def plant(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return plant


def rotate_all(folder: Path) -> None:
    keys(partial_rotary_factor=1.0)(folder)
    rope(partial_rotary_factor=1.0)(folder)


SHORT = np.linspace(1, 2, 32).tolist()
LONG = np.linspace(1, 12, 32).tolist()
PLANTS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "unscaled": ("llama", rope(whole=True, rope_type="default")),
    "no-attention-factor": ("llama", rope(attention_factor=1.0)),
    "attention-factor-twice": ("llama", rope(attention_factor=1.2079441541679836**2)),
    "linear": ("llama", rope(whole=True, rope_type="linear", factor=8.0)),
    "default-base": ("llama", rope(rope_theta=10000.0)),
    "default-base-unscaled": (
        "llama",
        rope(whole=True, rope_type="default", rope_theta=10000.0),
    ),
    "original-context": ("llama", rope(original_max_position_embeddings=512)),
    "truncation": ("llama", rope(truncate=False)),
    "default-betas": ("llama", rope(beta_fast=None, beta_slow=None)),
    "ntk": ("llama", rope(whole=True, rope_type="default", rope_theta=500000 * 8 ** (64 / 62))),
    "layout": ("llama", exchange_pairs),
    "local-layers": ("gemma", scale_local_layers),
    "full-rotation": ("phi", rotate_all),
    "short-list": ("longrope", rope(long_factor=SHORT)),
    "long-list": ("longrope", rope(short_factor=LONG)),
}
"""By the mistake: a packet, and what is left in the files of its model."""


@pytest.mark.parametrize("name", PACKETS)
def test_the_stock_class_passes_in_a_python_with_numpy_alone(
    name: str, packet: Made, check: Check, tmp_path: Path
) -> None:
    folder = packet(name)
    answers = logits_of(folder / "model", folder, tmp_path / "right.npz")
    done = check(folder, "--logits", answers, "--json", code=0)
    document = json.loads(done.text)
    assert (done.fits, document["passed"]) == (["right"], True)
    assert document["distances"]["right"] < document["allowed"] < 1e-2
    # the negative control: every mistake is far
    others = [away for name, away in document["distances"].items() if name != "right"]
    assert min(others) > 4 * document["allowed"]


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_mistake_is_named(name: str, packet: Made, check: Check, tmp_path: Path) -> None:
    folder = packet(PLANTS[name][0])
    model = planted(folder, tmp_path / "planted", PLANTS[name][1])
    answers = logits_of(model, folder, tmp_path / "wrong.npz")
    assert check(folder, "--logits", answers, "--json", code=1).fits == [name]
    text = check(folder, "--logits", answers, code=1).text
    assert text.startswith(f"FAIL: it computes {name} (")
    assert "Runner-up: " in text


def test_a_mistake_that_nobody_knows_is_none_of_these(
    packet: Made, check: Check, tmp_path: Path
) -> None:
    folder = packet("llama")
    model = planted(folder, tmp_path / "planted", rope(factor=3.0))
    answers = logits_of(model, folder, tmp_path / "wrong.npz")
    assert check(folder, "--logits", answers, "--json", code=1).fits == []
    text = check(folder, "--logits", answers, code=1).text
    assert "none of these" in text
    assert "At position 0" not in text


def test_other_weights_are_seen_at_position_0(packet: Made, check: Check, tmp_path: Path) -> None:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = safetensors.numpy.load_file(path)
        tensors["model.layers.0.mlp.down_proj.weight"] *= 2
        safetensors.numpy.save_file(tensors, path, {"format": "pt"})

    folder = packet("llama")
    model = planted(folder, tmp_path / "planted", change)
    answers = logits_of(model, folder, tmp_path / "wrong.npz")
    text = check(folder, "--logits", answers, code=1).text
    assert "none of these" in text
    assert "At position 0" in text


def test_bfloat16_passes_as_such_and_not_as_float32(
    packet: Made, check: Check, tmp_path: Path
) -> None:
    folder = packet("llama")
    answers = logits_of(folder / "model", folder, tmp_path / "b.npz", "bfloat16")
    assert "pass" in check(folder, "--logits", answers, "--dtype", "bfloat16", code=0).text
    assert check(folder, "--logits", answers, "--json", code=1).fits == []


def test_a_mistake_is_named_in_bfloat16(packet: Made, check: Check, tmp_path: Path) -> None:
    folder = packet("llama")
    model = planted(folder, tmp_path / "planted", PLANTS["linear"][1])
    answers = logits_of(model, folder, tmp_path / "b.npz", "bfloat16")
    words = ("--dtype", "bfloat16", "--json")
    assert check(folder, "--logits", answers, *words, code=1).fits == ["linear"]


# --- the other ways to ask an engine


@pytest.mark.parametrize("owner", ["vllm", "sglang", "llamacpp"])
def test_a_server_is_asked(owner: str, packet: Made, check: Check, tmp_path: Path) -> None:
    folder = packet("llama")
    wrong = planted(folder, tmp_path / "planted", PLANTS["no-attention-factor"][1])
    for model, fits in ((folder / "model", "right"), (wrong, "no-attention-factor")):
        # as the real server, it has no record for a token that is a part of a character
        with running(StandIn(owner, model, half_characters=100)) as url:
            done = check(folder, "--url", url, "--json")
        assert (done.fits, done.code) == ([fits], int(fits != "right"))


def test_a_function_of_python_is_called(packet: Made, check: Check, tmp_path: Path) -> None:
    folder = packet("llama")
    answers = logits_of(folder / "model", folder, tmp_path / "right.npz")
    program = f"import numpy\ndef logits(ids):\n    return numpy.load({str(answers)!r})['long']\n"
    (tmp_path / "engine.py").write_text(program)
    assert check(folder, "--call", "engine:logits", "--json", code=0).fits == ["right"]


OVERRIDES = {
    "right": {},
    "unscaled": {"rope_scaling_type": 0},
    "linear": {"rope_scaling_type": 1},
    "default-base": {"rope_freq_base": 10000.0},
}
"""Arguments of llama.cpp with which it makes a mistake."""


@pytest.mark.parametrize("name", OVERRIDES)
def test_the_gguf_file_is_run_in_llamacpp(
    name: str, packet: Made, check: Check, tmp_path: Path
) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    folder = packet("mistral")  # whose method llama.cpp reads from keys
    ids = json.loads((folder / "packet.json").read_text())["prompts"][0]["ids"]
    sizes = {"n_ctx": 512, "n_batch": 512, "n_ubatch": 512, "type_k": 0, "type_v": 0}
    model = llama_cpp.Llama(
        str(folder / "model.gguf"), logits_all=True, verbose=False, **sizes, **OVERRIDES[name]
    )
    model.eval(ids)
    np.save(tmp_path / "a.npy", np.array(model.scores[: len(ids)]))
    assert check(folder, "--logits", tmp_path / "a.npy", "--json").fits == [name]


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (lambda logits: logits[:, :100], 2, "320"),
        (lambda logits: logits[:100], 2, "511"),
        (lambda logits: np.full_like(logits, np.nan), 1, "not finite"),
    ],
)
def test_wrong_files_of_logits(
    change: Callable[..., Any],
    code: int,
    message: str,
    packet: Made,
    check: Check,
    tmp_path: Path,
) -> None:
    np.save(tmp_path / "a.npy", change(np.zeros((511, 320), np.float32)))
    assert message in check(packet("llama"), "--logits", tmp_path / "a.npy", code=code).text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--logits", "missing.npy"), "missing.npy"),
        (("--call", "no_such_module:f"), "no_such_module"),
        (("--url", "http://127.0.0.1:9"), "127.0.0.1:9"),
        (("--logits", "a.npy", "--dtype", "int4"), "int4"),
    ],
)
def test_an_engine_that_cannot_be_asked_is_no_failure(
    words: tuple[str, ...], message: str, packet: Made, check: Check
) -> None:
    assert message in check(packet("llama"), *words, code=2).text


# --- the packet


def expected_of(folder: Path) -> np.ndarray:
    with np.load(folder / "expected.npz") as arrays:
        return np.asarray(arrays["right"], np.float64)


def numpy_llama(folder: Path, ids: list[int]) -> np.ndarray:
    """A Llama with YaRN in float64, from the papers' formulas."""
    config = json.loads((folder / "config.json").read_text())
    scaling = config["rope_scaling"]
    weights = {
        name: tensor.astype(np.float64)
        for name, tensor in safetensors.numpy.load_file(folder / "model.safetensors").items()
    }
    width = config["head_dim"]
    base = config["rope_theta"]

    # YaRN: pairs that rotate often keep their frequency, the others are divided by the factor
    frequencies = base ** (-np.arange(0, width, 2) / width)

    def pair_with(rotations: float) -> float:
        length = scaling["original_max_position_embeddings"]
        return float(width * np.log(length / (rotations * 2 * np.pi)) / (2 * np.log(base)))

    low = max(np.floor(pair_with(scaling["beta_fast"])), 0)
    high = min(np.ceil(pair_with(scaling["beta_slow"])), width - 1)
    ramp = np.clip((np.arange(width // 2) - low) / (high - low), 0, 1)
    frequencies = frequencies / scaling["factor"] * ramp + frequencies * (1 - ramp)
    factor = 0.1 * np.log(scaling["factor"]) + 1
    phases = np.arange(len(ids))[:, None] * frequencies
    cos, sin = factor * np.cos(phases), factor * np.sin(phases)

    def norm(states: np.ndarray, name: str) -> np.ndarray:
        square = np.square(states).mean(-1, keepdims=True)
        return states / np.sqrt(square + config["rms_norm_eps"]) * weights[f"{name}.weight"]

    def rotate(heads: np.ndarray) -> np.ndarray:
        first, second = heads[..., : width // 2], heads[..., width // 2 :]
        return np.concatenate(
            [
                first * cos[:, None] - second * sin[:, None],
                second * cos[:, None] + first * sin[:, None],
            ],
            axis=-1,
        )

    states = weights["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        inputs = norm(states, f"{at}.input_layernorm")
        parts = {
            name: (inputs @ weights[f"{at}.self_attn.{name}_proj.weight"].T).reshape(
                len(ids), -1, width
            )
            for name in "qkv"
        }
        queries, keys_ = rotate(parts["q"]), rotate(parts["k"])
        heads = []
        for head in range(queries.shape[1]):
            group = head * keys_.shape[1] // queries.shape[1]
            scores = queries[:, head] @ keys_[:, group].T / np.sqrt(width)
            scores[np.triu_indices(len(ids), 1)] = -np.inf
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(shares / shares.sum(-1, keepdims=True) @ parts["v"][:, group])
        joined = np.concatenate(heads, axis=-1)
        states = states + joined @ weights[f"{at}.self_attn.o_proj.weight"].T
        inputs = norm(states, f"{at}.post_attention_layernorm")
        gate = inputs @ weights[f"{at}.mlp.gate_proj.weight"].T
        up = inputs @ weights[f"{at}.mlp.up_proj.weight"].T
        active = gate / (1 + np.exp(-gate)) * up
        states = states + active @ weights[f"{at}.mlp.down_proj.weight"].T
    return norm(states, "model.norm") @ weights["lm_head.weight"].T


def test_expected_logits_are_those_of_a_llama_in_numpy(packet: Made) -> None:
    """In float64, to the last decimal that is stated: stock classes are 20 times farther."""
    folder = packet("llama")
    (prompt,) = json.loads((folder / "packet.json").read_text())["prompts"]
    logits = numpy_llama(folder / "model", prompt["ids"])[prompt["positions"]]
    assert np.abs(logits - expected_of(folder)).max() < 1.2e-5


def test_the_likeliest_tokens_are_those_of_the_logits(packet: Made) -> None:
    folder = packet("llama")
    document = json.loads((folder / "packet.json").read_text())
    rows = check_rope.log_softmax(expected_of(folder))
    assert [len(row) for row in document["top"]] == [20] * 64
    for entries, row in zip(document["top"], rows, strict=True):
        best = np.sort(row)[::-1][:20]
        assert np.allclose([value for _, value in entries], best, atol=1e-5)
        assert np.allclose(row[[int(token) for token, _ in entries]], best, atol=1e-5)


def test_positions_reach_the_end_of_the_declared_length(packet: Made) -> None:
    document = json.loads((packet("llama") / "packet.json").read_text())
    (prompt,) = document["prompts"]
    assert (document["trained"], document["declared"]) == (64, 512)
    assert len(prompt["ids"]) == 511
    assert (prompt["positions"][0], prompt["positions"][-1]) == (0, 509)


def test_a_second_run_gives_the_same_bytes(packet: Made, tmp_path: Path) -> None:
    first = packet("llama")
    ropeconv.vectors(*PACKETS["llama"], tmp_path / "again")
    assert contents(tmp_path / "again") == contents(first)
    assert sum(len(content) for content in contents(first).values()) < 5_000_000


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_killed_run_is_completed_by_the_same_command(packet: Made, tmp_path: Path) -> None:
    first = packet("llama")
    place = tmp_path / "out"
    (place / "model").mkdir(parents=True)
    (place / "model" / "config.json").write_text("{}")
    (place / ".packet.json.ropeconv-partial").write_text("half")
    ropeconv.vectors(*PACKETS["llama"], place)
    assert contents(place) == contents(first)


def test_a_model_gives_its_rope(tmp_path: Path) -> None:
    make("llama", tmp_path / "model", rope_theta=123456.0)
    done = command(tmp_path, "vectors", "model", "--linear", 2, "-o", "out", "--json", code=0)
    document = json.loads(done.stdout)
    config = json.loads((tmp_path / "out/model/config.json").read_text())
    assert (config["rope_theta"], document["declared"]) == (123456.0, 128)
    assert "unscaled" in [entry["name"] for entry in document["candidates"]]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("no_such_family", "--yarn", 8), 2, "no_such_family"),
        (("llama", "--yarn", 100), 2, "6,400"),
        (("llama", "--as-is"), 2, "at most 4,096"),
        (("llama", "--yarn", 0.5), 2, "0.5"),
        (("llama",), 2, "method"),
        (("llama", "--yarn", 8, "--runtime", "nobody"), 2, "nobody"),
        (("other", "--yarn", 8), 1, "other"),
    ],
)
def test_what_is_refused(
    words: tuple[object, ...], code: int, message: str, tmp_path: Path
) -> None:
    make("apertus", tmp_path / "other")
    done = command(tmp_path, "vectors", *words, "-o", "out", code=code)
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_files_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    done = command(tmp_path, "vectors", "llama", "--yarn", 8, "-o", "out", code=2)
    assert "mine.txt" in done.stderr
    assert os.listdir(tmp_path / "out") == ["mine.txt"]


@pytest.mark.nightly
@pytest.mark.parametrize("family", shapes().families)
def test_every_architecture_passes_in_its_stock_class(
    family: str, check: Check, tmp_path: Path
) -> None:
    folder = tmp_path / "packet"
    made = ropeconv.vectors(family, recipe_of("yarn", 8.0), folder)
    assert made.bytes < 5_000_000
    assert len(made.candidates) > 9
    answers = logits_of(folder / "model", folder, tmp_path / "right.npz")
    assert check(folder, "--logits", answers, "--json", code=0).fits == ["right"]


@pytest.mark.parametrize("family", ["llama", "phi"])
def test_all_methods_have_a_packet_that_declares_the_same_length(family: str) -> None:
    """With 64 dimensions that rotate, and with 32."""
    rotary_dim = {"llama": 64, "phi": 32}[family]
    spec = RopeSpec(64, rotary_dim, Plain(10000.0), 64, 64)
    assert {*building.TEXTS, *building.BY_PAIRS} == {*building.method_names()}
    for name in building.method_names():
        if (name, family) == ("theta-bound", "phi"):
            continue  # where half of a head rotates, every base will do, and it says so
        schedule = building.recipe_of(name, family).schedule(spec)
        assert (schedule.context, len(schedule.inv_freq)) == (512, rotary_dim // 2), name

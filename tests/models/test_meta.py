"""Meta's layout, against an implementation of Meta's own model: interleaved pairs, complex
rotation; read in ranges.
"""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ropeconv.errors import BadSource, Disagreement
from ropeconv.models.folder import SHARD_BYTES, in_shards
from ropeconv.models.meta_layout import Params, TensorTarget, hf_config
from ropeconv.models.open import open_source
from ropeconv.models.source import Source

from ..conftest import CONFIGS, hashes
from ..support.baking import AS_IS, YARN_16, apply, make_plan
from ..support.corruptions import data, last_bit, verified
from ..support.extent import sample

VOCABULARY = 400
PARAMS = {
    "dim": 128,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "multiple_of": 32,
    "norm_eps": 1e-5,
}
LAYERS = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def published(name: str) -> Params:
    return msgspec.convert(json.loads((CONFIGS / f"{name}.params.json").read_text()), Params)


def sentencepiece_model(folder: Path) -> int:
    """A real SentencePiece tokenizer, trained on this file; returns its size."""
    import sentencepiece

    text = folder / "text.txt"
    text.write_text(Path(__file__).read_text() * 3)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=VOCABULARY,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    (folder / "tokenizer.vocab").unlink()
    text.unlink()
    return VOCABULARY


def weights(params: dict[str, Any], vocabulary: int, dtype: Any) -> dict[str, Any]:
    """Random tensors of a release, by Meta's names."""
    import torch

    torch.manual_seed(0)
    dim = params["dim"]
    inner = msgspec.convert(params, Params).intermediate_size
    width = dim // params["n_heads"]
    keys = params["n_kv_heads"] * width
    shapes = {"tok_embeddings": (vocabulary, dim), "output": (vocabulary, dim)}
    for layer in range(params["n_layers"]):
        attention = f"layers.{layer}.attention."
        forward = f"layers.{layer}.feed_forward."
        shapes |= {
            attention + "wq": (dim, dim),
            attention + "wk": (keys, dim),
            attention + "wv": (keys, dim),
        }
        shapes |= {
            attention + "wo": (dim, dim),
            forward + "w1": (inner, dim),
            forward + "w3": (inner, dim),
        }
        shapes |= {forward + "w2": (dim, inner)}
    tensors = {
        f"{name}.weight": (torch.randn(*shape) * 0.3).to(dtype) for name, shape in shapes.items()
    }
    for layer in range(params["n_layers"]):
        for name in ("attention_norm", "ffn_norm"):
            tensors[f"layers.{layer}.{name}.weight"] = torch.rand(dim).to(dtype)
    return tensors | {
        "norm.weight": torch.ones(dim, dtype=dtype),
        "rope.freqs": torch.zeros(width // 2, dtype=dtype),
    }


def split(tensors: dict[str, Any], parts: int, embed_axis: int) -> list[dict[str, Any]]:
    """Model-parallel parts as Meta's trainers save them."""
    axes = {"wo.weight": 1, "w2.weight": 1, "tok_embeddings.weight": embed_axis}
    result: list[dict[str, Any]] = [{} for _ in range(parts)]
    for name, tensor in tensors.items():
        whole = tensor.ndim == 1
        axis = next((axis for end, axis in axes.items() if name.endswith(end)), 0)
        pieces = [tensor] * parts if whole else tensor.chunk(parts, dim=axis)
        for part, piece in zip(result, pieces, strict=True):
            part[name] = piece.clone()
    return result


def meta_logits(tensors: dict[str, Any], params: dict[str, Any], ids: Any, theta: float) -> Any:
    """Meta's forward pass: pairs (2i, 2i+1) as complex numbers, multiplied by e^(i m theta_i)."""
    import torch

    heads = params["n_heads"]
    kv = params["n_kv_heads"]
    dim = params["dim"]
    width = dim // heads
    count = len(ids)
    angles = torch.outer(
        torch.arange(count).double(), theta ** (-torch.arange(0, width, 2).double() / width)
    )
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]

    def norm(x: Any, weight: Any) -> Any:
        return (
            x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + params["norm_eps"]) * weight.double()
        )

    def rotate(x: Any) -> Any:
        pairs = torch.view_as_complex(x.reshape(count, -1, width // 2, 2).contiguous())
        return torch.view_as_real(pairs * turn).flatten(2)

    x = tensors["tok_embeddings.weight"].double()[ids]
    mask = torch.full((count, count), -torch.inf).triu(1).double()
    for layer in range(params["n_layers"]):
        w = {
            k.split(f"layers.{layer}.")[1]: v.double()
            for k, v in tensors.items()
            if k.startswith(f"layers.{layer}.")
        }
        h = norm(x, w["attention_norm.weight"])
        q = rotate((h @ w["attention.wq.weight"].T).view(count, heads, width))
        k = rotate((h @ w["attention.wk.weight"].T).view(count, kv, width)).repeat_interleave(
            heads // kv, 1
        )
        v = (
            (h @ w["attention.wv.weight"].T)
            .view(count, kv, width)
            .repeat_interleave(heads // kv, 1)
        )
        score = torch.einsum("qhd,khd->hqk", q, k) / width**0.5 + mask
        x = (
            x
            + torch.einsum("hqk,khd->qhd", score.softmax(-1), v).flatten(1)
            @ w["attention.wo.weight"].T
        )
        h = norm(x, w["ffn_norm.weight"])
        gate = torch.nn.functional.silu(h @ w["feed_forward.w1.weight"].T)
        x = x + (gate * (h @ w["feed_forward.w3.weight"].T)) @ w["feed_forward.w2.weight"].T
    return norm(x, tensors["norm.weight"]) @ tensors["output.weight"].double().T


def release(
    folder: Path, parts: int = 1, embed_axis: int = 1, dtype: str = "float32", **params: Any
) -> dict[str, Any]:
    """A folder as Meta distributes it; returns the whole tensors."""
    import torch

    folder.mkdir()
    settings = PARAMS | params
    vocabulary = sentencepiece_model(folder)
    tensors = weights(settings, vocabulary, getattr(torch, dtype))
    for number, part in enumerate(split(tensors, parts, embed_axis)):
        torch.save(part, folder / f"consolidated.{number:02d}.pth")
    (folder / "params.json").write_text(json.dumps(settings))
    (folder / "checklist.chk").write_text("")
    (folder / "LICENSE.txt").write_text("terms")
    return tensors


def hf_tensors(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The tensors of a release under the names and in the order of rows that `transformers` has."""
    import torch

    def joined(name: str, axis: int) -> Any:
        return torch.cat([part[name] for part in parts], dim=axis)

    def halves(weight: Any) -> Any:
        width = PARAMS["dim"] // PARAMS["n_heads"]  # type: ignore[operator]
        order = [*range(0, width, 2), *range(1, width, 2)]
        return weight[[head + row for head in range(0, len(weight), int(width)) for row in order]]

    tensors = {"model.embed_tokens.weight": joined("tok_embeddings.weight", 1)}
    tensors |= {
        "lm_head.weight": joined("output.weight", 0),
        "model.norm.weight": parts[0]["norm.weight"],
    }
    for layer in range(int(PARAMS["n_layers"])):
        for old, new in LAYERS.items():
            name = f"layers.{layer}.{old}.weight"
            axis = int(old.endswith(("wo", "w2")))
            whole = parts[0][name] if old.endswith("norm") else joined(name, axis)
            tensors[f"model.layers.{layer}.{new}.weight"] = (
                halves(whole) if old.endswith(("wq", "wk")) else whole
            )
    return tensors


@pytest.mark.parametrize(("parts", "embed_axis"), sample([(1, 1), (2, 1), (2, 0)], 2))
def test_stock_transformers_computes_what_meta_does(
    tmp_path: Path, parts: int, embed_axis: int
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    tensors = release(tmp_path / "llama", parts, embed_axis)
    before = hashes(tmp_path / "llama")
    out = apply(make_plan(tmp_path / "llama", AS_IS, tmp_path / "out"))
    assert hashes(tmp_path / "llama") == before
    ids = torch.arange(40) * 7 % VOCABULARY
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(out)(ids[None]).logits[0]
    expected = meta_logits(tensors, PARAMS, ids, 10000.0)
    assert (logits - expected).abs().max() < 1e-3 * expected.std()
    wrong = meta_logits(tensors, PARAMS, ids, 20000.0)
    assert (logits - wrong).abs().max() > 0.1 * expected.std()


def test_the_tokenizer_of_llama_2_loads(tmp_path: Path) -> None:
    import sentencepiece
    from transformers import AutoTokenizer

    release(tmp_path / "llama")
    out = apply(make_plan(tmp_path / "llama", AS_IS, tmp_path / "out"))
    plain = sentencepiece.SentencePieceProcessor(
        model_file=str(tmp_path / "llama" / "tokenizer.model")
    )
    tokenizer = AutoTokenizer.from_pretrained(out)
    text = "def rotate(x): return x"
    assert tokenizer.encode(text) == [1, *plain.encode(text)]
    assert tokenizer.model_max_length == 4096


def test_the_tokenizer_may_be_one_level_above_where_it_has_as_many_tokens_as_the_release_says(
    tmp_path: Path,
) -> None:
    release(tmp_path / "llama", vocab_size=VOCABULARY)
    (tmp_path / "llama" / "tokenizer.model").rename(tmp_path / "tokenizer.model")
    plan = make_plan(tmp_path / "llama", AS_IS, tmp_path / "out")
    assert any(f"that of {tmp_path}" in note for note in (*plan.notes, *plan.warnings))
    assert (apply(plan) / "tokenizer.model").read_bytes() == (
        tmp_path / "tokenizer.model"
    ).read_bytes()
    (tmp_path / "llama" / "params.json").write_text(
        json.dumps(PARAMS | {"vocab_size": VOCABULARY + 1})
    )
    with pytest.raises(
        BadSource,
        match=r"400 tokens .* 401",
    ):
        make_plan(tmp_path / "llama", AS_IS, tmp_path / "again")


def test_the_tokenizer_of_llama_3_loads(tmp_path: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    release(tmp_path / "llama", rope_theta=500000.0)
    lines = [f"{base64.b64encode(bytes([byte])).decode()} {byte}" for byte in range(256)]
    lines += [
        f"{base64.b64encode(word).decode()} {256 + rank}"
        for rank, word in enumerate((b"he", b"ll", b"hell"))
    ]
    (tmp_path / "llama" / "tokenizer.model").write_text("\n".join(lines) + "\n")
    tensors = weights(PARAMS, 259 + 256, torch.float32)
    torch.save(tensors, tmp_path / "llama" / "consolidated.00.pth")
    out = apply(make_plan(tmp_path / "llama", AS_IS, tmp_path / "out"))
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.encode("hello") == [259, 258, ord("o")]
    assert tokenizer.convert_tokens_to_ids("<|eot_id|>") == 259 + 9
    assert len(tokenizer) == 515


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Llama-2-7b", (4096, 10000.0, 11008)), ("Meta-Llama-3-8B-Instruct", (8192, 500000.0, 14336))],
)
def test_published_params(name: str, expected: tuple[int, float, int]) -> None:
    config = hf_config(published(f"meta-llama--{name}"), 32000, "bfloat16")
    assert (
        config["max_position_embeddings"],
        config["rope_theta"],
        config["intermediate_size"],
    ) == expected


HALF = SHARD_BYTES // 2


@pytest.mark.parametrize(
    ("sizes", "limit", "groups"),
    [
        ([3, 3, 3], 6, [[3, 3], [3]]),
        ([3, 3, 3], 5, [[3], [3], [3]]),
        ([9, 1, 1], 4, [[9], [1, 1]]),
        ([1, 9, 1], 4, [[1], [9], [1]]),
        ([2, 2, 2, 2, 2], 4, [[2, 2], [2, 2], [2]]),
        ([5], 4, [[5]]),
        ([], 4, [[]]),
        ([HALF, HALF], 5 * 10**9, [[HALF, HALF]]),
    ],
)
def test_groups_of_shards_within_their_limit(
    sizes: list[int], limit: int, groups: list[list[int]]
) -> None:
    shards = in_shards((TensorTarget("x", "U8", (size,), "", None) for size in sizes), limit)
    assert [[tensor.shape[0] for tensor in shard.tensors] for shard in shards] == groups


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("executed"),))


def test_no_pickle_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    tensors = release(tmp_path / "llama")
    torch.save({**tensors, "evil": Evil()}, tmp_path / "llama" / "consolidated.00.pth")
    with pytest.raises(BadSource, match="plain weights"):
        apply(make_plan(tmp_path / "llama", AS_IS, tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["llama"]


def test_damaged_releases(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    first = tmp_path / "llama" / "consolidated.00.pth"
    release(folder, parts=2)
    first.rename(folder / "consolidated.02.pth")
    with pytest.raises(BadSource, match=r"lacks consolidated\.00\.pth"):
        make_plan(folder, AS_IS)
    (folder / "consolidated.02.pth").rename(first)
    (folder / "params.json").write_text(json.dumps(PARAMS | {"multiple_of": 512}))
    with pytest.raises(BadSource, match="each of 2 files"):
        apply(make_plan(folder, AS_IS, tmp_path / "out"))
    first.write_bytes(b"not a zip")
    with pytest.raises(BadSource, match="torch.save"):
        make_plan(folder, AS_IS)


# Ranges of its tensors, and comparisons with its outputs

MODEL = "model.safetensors"


@pytest.fixture(scope="module", params=sample([1, 2], 1))
def meta(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "llama"
    release(folder, request.param, dtype="bfloat16")
    return folder


@pytest.fixture(scope="module")
def as_is(meta: Path) -> Path:
    return apply(make_plan(meta, AS_IS, meta.parent / "as-is"))


def stored(meta: Path) -> list[dict[str, Any]]:
    import torch

    return [torch.load(path, weights_only=True) for path in sorted(meta.glob("*.pth"))]


def checkpoint(folder: Path) -> Source:
    source = open_source(str(folder))
    assert isinstance(source, Source)
    return source


def raw(tensor: Any) -> bytes:
    import torch

    return bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def test_ranges_are_those_of_the_pth_files(meta: Path, as_is: Path) -> None:
    source = checkpoint(meta)
    expected = hf_tensors(stored(meta))
    assert source.tensors.keys() == expected.keys()
    start = source.headers[MODEL].data_start
    generator = np.random.default_rng(0)
    for name, tensor in source.tensors.items():
        data = raw(expected[name])
        assert (tensor.shape, tensor.dtype) == (tuple(expected[name].shape), "BF16")
        ranges = [
            (0, len(data)),
            *(sorted(generator.integers(0, len(data) + 1, 2).tolist()) for _ in range(6)),
        ]
        for first, last in ranges:
            at = start + tensor.start
            assert source.read(MODEL, at + first, at + last) == data[first:last], (
                name,
                first,
                last,
            )
    size = (as_is / MODEL).stat().st_size
    assert source.read(MODEL, 0, size) == (as_is / MODEL).read_bytes()
    with pytest.raises(BadSource, match="ends before byte"):
        source.read(MODEL, 0, size + 1)


def test_an_output_is_compared_with_a_conversion_of_its_source(
    meta: Path, as_is: Path, tmp_path: Path
) -> None:
    out = apply(make_plan(meta, YARN_16, tmp_path / "out"))
    other = Path(shutil.copytree(as_is, tmp_path / "other"))
    verified(out, meta)
    verified(out, other)
    data(last_bit)(other)
    with pytest.raises(Disagreement, match="model.safetensors differs"):
        verified(out, other)
    verified(out, other, quick=True)

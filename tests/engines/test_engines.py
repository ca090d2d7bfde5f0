"""One interface to every way of running a model: what each gives, that they give the same; and
chunks of a prompt.
"""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.attention.bias import CausalBias
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModel
from transformers.cache_utils import DynamicCache, DynamicLayer

from ropeconv.engines.engine import Engine, Progress
from ropeconv.engines.llamacpp import LlamaCppEngine
from ropeconv.engines.transformers import chunks
from ropeconv.engines.transformers.chunks import ChunkMask, PreallocatedLayer, preallocate
from ropeconv.engines.transformers.engine import TransformersEngine
from ropeconv.engines.transformers.load import DeviceSpec, load_stock
from ropeconv.rope.errors import RopeconvError

from ..support.baking import apply, make_plan, recipe_of
from ..support.embedding_gemma import embedding_gemma
from ..support.extent import sample
from ..support.models import TINY, TRAINED, VOCABULARY

CPU = DeviceSpec("cpu", "float32")


def ids(length: int) -> list[int]:
    return list(np.random.default_rng(3).integers(4, VOCABULARY, length).tolist())


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[TransformersEngine, LlamaCppEngine]:
    """One model, extended four times, in transformers and in llama.cpp."""
    from ..support.llamacpp import checkpoint

    root = tmp_path_factory.mktemp("engines")
    source = checkpoint("llama", root / "source")
    recipe = recipe_of("yarn", 4.0)
    folder = apply(make_plan(source, recipe, root / "out"))
    gguf = apply(make_plan(source, recipe, root / "out.gguf", to="gguf", outtype="f32"))
    return TransformersEngine.load(folder, CPU), LlamaCppEngine(gguf)


def test_both_generate_the_same_tokens(both: tuple[Engine, Engine]) -> None:
    text = ids(2 * TRAINED)
    left, right = (engine.generate(text, 12) for engine in both)
    common = min(len(left), len(right))  # the two formats name different tokens that end a text
    assert left[:common] == right[:common]
    assert common >= 4
    assert both[0].generate(text[:-1], 12) != left


def test_chunks_change_nothing_but_rounding_and_are_heard_of(
    both: tuple[TransformersEngine, Engine],
) -> None:
    engine = both[0]
    text = ids(3 * TRAINED)
    kept = list(range(len(text)))
    heard = list[int]()
    whole = engine.logits(text, kept)
    engine.chunk = 50
    parts = engine.logits(text, kept, Progress(advance=heard.append))
    engine.chunk = 4096
    assert heard == [50, 50, 50, 42]
    assert float((whole - parts).abs().max() / whole.std()) < 1e-3


def test_a_model_that_reads_in_both_directions_has_no_chunks(tmp_path: Path) -> None:
    folder = embedding_gemma(tmp_path / "source")
    text = ids(TRAINED)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = model(torch.tensor([text])).last_hidden_state[0]

    engine = TransformersEngine.load(folder, CPU, chunk=10)
    assert not engine.has_logits
    assert not engine.chunked
    states = engine.hidden_states(text, range(TRAINED), range(TRAINED))
    torch.testing.assert_close(states, expected)
    # the first tokens see the last one
    text[-1] = 5 if text[-1] != 5 else 6
    other = engine.hidden_states(text, range(TRAINED), range(TRAINED))
    assert float((other - states)[0].abs().max()) > 1e-3


def test_a_file_that_llama_cpp_refuses_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(RopeconvError, match=r"llama.cpp cannot run bad.gguf: "):
        LlamaCppEngine(tmp_path / "bad.gguf").logits([1, 2], [1])


# Chunks behind a cache: the numbers that masks give, without masks and copies of the cache, and on
# other devices

LENGTH, CHUNK = (
    260,
    80,
)  # a chunk has more tokens than a head has dimensions, which tells shapes apart
WELL_KNOWN = ("llama", "gemma3_text", "qwen3", "mixtral")


def states(model: object, chunk: int = CHUNK) -> torch.Tensor:
    ids = torch.randint(VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(0)).tolist()
    return TransformersEngine(model, chunk).hidden_states(ids, range(LENGTH), range(LENGTH))


def apart(left: torch.Tensor, right: torch.Tensor) -> float:
    return float(((left - right).norm(dim=-1) / right.norm(dim=-1)).max())


def as_transformers_does(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(chunks, "needs_no_masks", lambda model: False)
    patch.setattr(chunks, "preallocate", lambda *call: None)


def operations(run: Callable[[], object]) -> dict[str, list[list[list[int]]]]:
    """The shapes of the inputs of every operation that a run calls, by its name."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        run()
    calls: dict[str, list[list[list[int]]]] = defaultdict(list)
    for event in profile.events():
        calls[event.name].append(event.input_shapes)
    return calls


@pytest.mark.parametrize(
    "model_type", [*sample(WELL_KNOWN, 1, seed=1), *sample(sorted({*TINY} - {*WELL_KNOWN}), 2)]
)
def test_the_states_are_those_with_masks(
    model_type: str, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_stock(tiny(model_type), "cpu")
    without = states(model)
    as_transformers_does(monkeypatch)
    assert apart(without, states(model)) < 1e-4


def test_masks_aligned_with_the_first_key_are_noticed(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_stock(tiny("llama"), "cpu")
    right = states(model)
    monkeypatch.setattr(ChunkMask, "of", staticmethod(lambda rows, columns, device: None))
    assert apart(states(model), right) > 0.1


@pytest.mark.parametrize("model_type", sample(WELL_KNOWN, 1))
def test_no_mask_of_the_cache_and_no_copy_of_it_exists(
    model_type: str, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_stock(tiny(model_type), "cpu")
    window = getattr(model.config, "sliding_window", None) or 0
    longest = max(
        CHUNK, window - 1 + CHUNK
    )  # layers with a window keep their short cache and its mask

    def masks(calls: dict[str, list[list[list[int]]]]) -> int:
        """The calls with an input of a chunk's rows, and of more columns than a window has."""
        shapes = [
            shape for name in calls if "attention" in name for call in calls[name] for shape in call
        ]
        return sum(len(shape) == 4 and shape[2] == CHUNK and shape[3] > longest for shape in shapes)

    copies = list[tuple[int, ...]]()
    join = torch.cat

    def joined(*args: object, **given: object) -> torch.Tensor:
        out = join(*args, **given)
        copies.extend([tuple(out.shape)] if out.dim() == 4 and out.shape[2] > longest + 1 else [])
        return out

    monkeypatch.setattr(torch, "cat", joined)
    calls = operations(lambda: states(model))
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in calls
    assert (masks(calls), copies) == (0, [])
    as_transformers_does(monkeypatch)
    assert masks(operations(lambda: states(model))) > 0
    assert copies


def test_every_other_function_sees_the_numbers_of_a_mask() -> None:
    mask = ChunkMask.of(3, 5, "cpu")
    numbers = torch.ones(3, 5, dtype=torch.bool).tril(2)[None, None]
    assert (mask.shape, mask.dtype) == (numbers.shape, torch.bool)
    with torch._C.DisableTorchFunctionSubclass():
        assert mask.untyped_storage().nbytes() == 1
    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda m: m[..., :4],
        lambda m: m & ~m.flip(-1),
        lambda m: torch.where(m, 0.0, 1.0),
    ]
    for function in functions:
        assert type(function(mask)) is torch.Tensor
        assert torch.equal(function(mask), function(numbers))


@pytest.mark.parametrize(
    ("width", "dtype", "error"),
    [(32, "float32", 2e-6), (16, "float32", 2e-6), (32, "bfloat16", 0.02)],
)
def test_attention_behind_a_cache_is_that_with_a_mask(width: int, dtype: str, error: float) -> None:
    """Keys and values of one width run in flash kernels on a CPU, others (MLA) as on other
    devices.
    """
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, rows, size)
        for heads, rows, size in ((8, 7, 32), (2, 40, 32), (2, 40, width))
    )
    numbers = torch.ones(7, 40, dtype=torch.bool).tril(33)
    expected = scaled_dot_product_attention(query, key, value, numbers, scale=0.3, enable_gqa=True)
    query, key, value = (part.to(getattr(torch, dtype)) for part in (query, key, value))
    out = scaled_dot_product_attention(
        query, key, value, ChunkMask.of(7, 40, "cpu"), scale=0.3, enable_gqa=True
    )
    assert out.dtype == query.dtype
    assert float((out.float() - expected).abs().max()) < error
    wrong = scaled_dot_product_attention(
        query, key[:, :, :7], value[:, :, :7], is_causal=True, scale=0.3, enable_gqa=True
    )
    assert float((wrong - expected).abs().max()) > 10 * error


@pytest.mark.parametrize(("dtype", "heads"), [(torch.bfloat16, 2), (torch.float32, 8)])
def test_other_devices_align_with_the_last_key(
    dtype: torch.dtype, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flash kernels take groups of queries; those for float32 need a key for each query."""
    calls = []

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **given: object
    ) -> torch.Tensor:
        calls.append((key.shape[1], given["attn_mask"], given["enable_gqa"]))
        return query

    monkeypatch.setattr(chunks, "scaled_dot_product_attention", attend)
    query, key = (
        torch.empty(1, count, rows, 32, dtype=dtype, device="meta")
        for count, rows in ((8, 7), (2, 40))
    )
    chunks._attention(query, key, key, ChunkMask.of(7, 40, "meta"), enable_gqa=True)
    ((count, mask, grouped),) = calls
    assert isinstance(mask, CausalBias)
    assert (mask.variant.name, mask.seq_len_q, mask.seq_len_kv) == ("LOWER_RIGHT", 7, 40)
    assert (count, grouped) == (heads, heads == 2)


def test_a_cache_is_filled_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DynamicCache()
    parts = [torch.randn(1, 2, rows, 8) for rows in (6, 5, 1)]
    cache.update(parts[0], -parts[0], 0)
    preallocate(cache, 12)
    place = cache.layers[0].keys.data_ptr()
    for number in (1, 2):
        keys, values = cache.update(parts[number], -parts[number], 0)
        assert torch.equal(keys, torch.cat(parts[: number + 1], 2))
        assert torch.equal(values, -keys)
        assert keys.data_ptr() == place
    assert cache.get_seq_length() == 12


def test_a_cache_that_is_larger_than_its_gpu_is_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def on_host(free: int, device: str) -> bool:
        cache = DynamicCache()
        cache.update(*[torch.empty(1, 2, 4, 8, device=device)] * 2, 0)
        monkeypatch.setattr(chunks, "free_bytes", lambda name: free if name == device else 0)
        monkeypatch.setattr(chunks, "PreallocatedLayer", lambda layer, length, host: host)
        preallocate(cache, 100)
        (chosen,) = cache.layers
        return bool(chosen)

    size = 2 * 2 * 8 * 4 * 100  # keys and values, heads, width, bytes, tokens
    assert (on_host(size - 1, "meta"), on_host(size, "meta"), on_host(0, "cpu")) == (
        True,
        False,
        False,
    )
    layer = DynamicLayer()
    layer.update(torch.ones(1, 2, 4, 8), torch.zeros(1, 2, 4, 8))
    keys, values = PreallocatedLayer(layer, 6, on_host=True).update(
        *[torch.full((1, 2, 2, 8), 3.0)] * 2
    )
    assert (keys[0, 0, :, 0].tolist(), values[0, 0, :, 0].tolist()) == (
        [1, 1, 1, 1, 3, 3],
        [0, 0, 0, 0, 3, 3],
    )


def test_generation_reads_the_prompt_in_chunks(llama: Path) -> None:
    engine = TransformersEngine.load(llama, DeviceSpec("cpu", "float32"))
    prompt = list(range(4, 154))
    expected = engine.generate(prompt, 5)
    lengths = list[int]()
    engine.chunk = CHUNK
    engine.model.model.layers[0].register_forward_hook(
        lambda module, args, output: lengths.append(output.shape[1])
    )
    assert engine.generate(prompt, 5) == expected
    assert lengths == [80, 70, 1, 1, 1, 1]

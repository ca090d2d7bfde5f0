"""`ropeconv imatrix`: the numbers, and the file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from ropeconv.convert.to_gguf.imatrix import read_imatrix
from ropeconv.errors import UsageError
from ropeconv.features.imatrix import collecting
from ropeconv.features.imatrix.collecting import imatrix
from ropeconv.formats.gguf.file import GgufFile

from ...support.baking import AS_IS
from ...support.llamacpp import bake, checkpoint

pytest.importorskip("llama_cpp")

SIZE = 32
PIECES = 2
MATRICES = {
    "attn_q": "self_attn.q_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_down": "mlp.down_proj",
}
"""Names of a layer in GGUF and in transformers."""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("An importance matrix says which inputs are large. " * 4)
    return path


def model(kind: str, folder: Path, **sizes: Any) -> tuple[Path, Path]:
    """A checkpoint and its conversion."""
    source = checkpoint(kind, folder / kind, **sizes)
    path = folder / f"{kind}.gguf"
    bake(source, AS_IS, path)
    return source, path


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return model("llama", tmp_path_factory.mktemp("model"))


def pieces_of(source: Path, text: Path) -> list[list[int]]:
    """The tokens of each piece, which begins with the first token of the model."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    ids = tokenizer(text.read_text(), add_special_tokens=False)["input_ids"]
    file = GgufFile.open(source.with_name(f"{source.name}.gguf"))
    first = []
    if file.get("tokenizer.ggml.add_bos_token", False):
        first = [file.get("tokenizer.ggml.bos_token_id")]
    ids = [*first, *ids]
    pieces = []
    for piece in range(PIECES):
        part = ids[piece * SIZE : (piece + 1) * SIZE]
        pieces.append([*first, *part[len(first) :]])
    return pieces


def squares_in_transformers(source: Path, pieces: list[list[int]]) -> dict[str, NDArray[Any]]:
    """The sums of the squares of the inputs of matrices, by their names in GGUF."""
    network = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    sums: dict[str, NDArray[Any]] = {}

    def keep(name: str) -> Any:
        def hook(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            added = (inputs[0][0].double() ** 2).sum(0).numpy()
            sums[name] = sums.get(name, 0) + added

        return hook

    for number, layer in enumerate(network.model.layers):
        for short, place in MATRICES.items():
            layer.get_submodule(place).register_forward_pre_hook(
                keep(f"blk.{number}.{short}.weight")
            )
    with torch.no_grad():
        for piece in pieces:
            network(torch.tensor([piece]))
    return sums


def test_the_numbers_are_those_of_transformers(
    llama: tuple[Path, Path], text: Path, tmp_path: Path
) -> None:
    source, gguf = llama
    out = tmp_path / "out.gguf"
    done = imatrix(gguf, text, out=out, chunk_size=SIZE, chunks=PIECES)
    assert (done.chunks, done.unseen) == (PIECES, 0)
    file = GgufFile.open(out)
    expected = squares_in_transformers(source, pieces_of(source, text))
    assert expected
    for name, sums in expected.items():
        ours = np.frombuffer(file.read(f"{name}.in_sum2"), "<f4")
        np.testing.assert_allclose(ours, sums, rtol=1e-4, atol=1e-5 * sums.max())
        counts = np.frombuffer(file.read(f"{name}.counts"), "<f4")
        np.testing.assert_array_equal(counts, [SIZE * PIECES])
    # a negative control: the numbers of one matrix are not those of another
    first = np.frombuffer(file.read("blk.0.attn_q.weight.in_sum2"), "<f4")
    assert not np.allclose(first, expected["blk.0.attn_output.weight"], rtol=0.1)


def test_the_file_is_an_importance_matrix_of_llama_cpp(
    llama: tuple[Path, Path], text: Path, tmp_path: Path
) -> None:
    _, gguf = llama
    out = tmp_path / "out.gguf"
    done = imatrix(gguf, text, out=out, chunk_size=SIZE, chunks=PIECES)
    file = GgufFile.open(out)
    assert file.get("general.type") == "imatrix"
    assert file.get("imatrix.datasets") == ["text.txt"]
    assert file.get("imatrix.chunk_count") == PIECES
    assert file.get("imatrix.chunk_size") == SIZE
    entries = read_imatrix(out).entries
    assert len(entries) == done.entries
    weights = [name for name in GgufFile.open(gguf).tensors if name.startswith("blk.")]
    matrices = {name for name in weights if name.endswith(".weight") and "norm" not in name}
    assert entries.keys() == matrices


def test_experts_have_their_own_numbers(text: Path, tmp_path: Path) -> None:
    _, gguf = model("qwen3_moe", tmp_path)
    out = tmp_path / "out.gguf"
    imatrix(gguf, text, out=out, chunk_size=SIZE, chunks=PIECES)
    file = GgufFile.open(out)
    name = "blk.0.ffn_up_exps.weight"
    experts = GgufFile.open(gguf).tensors[name].shape[2]
    chosen = GgufFile.open(gguf).get("qwen3moe.expert_used_count")
    counts = np.frombuffer(file.read(f"{name}.counts"), "<f4")
    assert len(counts) == experts
    assert counts.sum() == SIZE * PIECES * chosen
    assert (
        len(read_imatrix(out).entries[name]) == experts * file.tensors[f"{name}.in_sum2"].shape[0]
    )


def test_a_short_text_and_other_files_are_refused(
    llama: tuple[Path, Path], text: Path, tmp_path: Path
) -> None:
    source, gguf = llama
    out = tmp_path / "out.gguf"
    with pytest.raises(UsageError, match="--chunk-size"):
        imatrix(gguf, text, out=out, chunk_size=4096)
    with pytest.raises(UsageError, match="GGUF"):
        imatrix(source / "model.safetensors", text, out=out)
    with pytest.raises(UsageError, match="text file"):
        imatrix(gguf, tmp_path / "missing.txt", out=out)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_refused_with_the_command_that_converts_it(
    llama: tuple[Path, Path], text: Path
) -> None:
    with pytest.raises(UsageError, match=r"ropeconv apply \S+ --as-is --to gguf --outtype bf16"):
        imatrix(llama[0], text)


def test_a_matrix_is_written_whole_or_not(
    llama: tuple[Path, Path], text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, gguf = llama
    out = tmp_path / "out.gguf"
    out.write_text("an earlier file")
    with pytest.raises(UsageError, match="--force"):
        imatrix(gguf, text, out=out, chunk_size=SIZE)

    def fail(*arguments: Any) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(collecting, "imatrix_file", fail)
    with pytest.raises(OSError, match="space"):
        imatrix(gguf, text, out=out, chunk_size=SIZE, chunks=1, force=True)
    assert out.read_text() == "an earlier file"
    monkeypatch.undo()
    imatrix(gguf, text, out=out, chunk_size=SIZE, chunks=1, force=True)
    assert GgufFile.open(out).get("general.type") == "imatrix"
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]

"""GGUF files that are no language model: adapters, projectors, importance matrices, vocabularies, and drafts."""

from __future__ import annotations

from collections.abc import Callable

from ...formats.gguf import GgufFile

KINDS: tuple[tuple[Callable[[GgufFile], bool], str], ...] = (
    (
        lambda file: file.get("general.type") == "adapter" or file.get("adapter.type") is not None,
        "is a LoRA adapter, which has no RoPE of its own; extend the model that it belongs to",
    ),
    (
        lambda file: file.get("general.type") == "mmproj" or file.get("general.architecture") == "clip",
        "is a multimodal projector (mmproj), which is not extended; give the file of the language model beside it",
    ),
    (
        lambda file: file.get("general.type") == "imatrix" or _sums(file),
        "is an importance matrix and no model; give the model itself",
    ),
    (
        lambda file: file.get("general.architecture") is None,
        "names no general.architecture; it is no language model",
    ),
    (
        lambda file: not file.tensors,
        "holds a vocabulary and no weights, so there is nothing to extend; give the model itself",
    ),
    (
        lambda file: bool(_further(file)) and not any(name.startswith("blk.0.") for name in file.tensors),
        "holds only layers that predict further tokens (MTP), a draft for another file; extend that file, and leave "
        "the draft as it is",
    ),
)
"""Each kind as a test of the file, and what to say of one after its name."""


def other_kind(file: GgufFile) -> str:
    """What a file is instead of a language model, with the repair, to be said after its name; empty for a model."""
    return next((words for applies, words in KINDS if applies(file)), "")


def _sums(file: GgufFile) -> bool:
    """Whether the tensors are the sums and counts of an importance matrix, as of llama-imatrix."""
    return any(name.endswith(".in_sum2") for name in file.tensors)


def _further(file: GgufFile) -> int:
    found = file.get(f"{file.get('general.architecture')}.nextn_predict_layers", 0)
    return found if isinstance(found, int) else 0

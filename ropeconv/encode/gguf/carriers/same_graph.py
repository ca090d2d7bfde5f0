"""Carriers with the same graph: qwen2 as llama with its rows interleaved, and architectures that only need renaming."""

from __future__ import annotations

from ....formats.gguf import Edit
from ..gguf_model import GgufModel
from .carrier import carrier, interleave, whole_rotation


@carrier("qwen2", "llama")
def qwen2_as_llama(model: GgufModel) -> Edit:
    """The edit for qwen2 as llama, whose graph has biases too; rows are reordered to the pairs (2i, 2i + 1)."""
    return Edit(arch="llama", changes=interleave(model)).merged(whole_rotation(model, "llama"))


@carrier("qwen2", "mistral3")
def qwen2_as_mistral3(model: GgufModel) -> Edit:
    """The edit for qwen2 as mistral3, which has the graph of llama and also reads yarn's betas; rows are reordered."""
    return Edit(arch="mistral3", changes=interleave(model)).merged(whole_rotation(model, "mistral3"))


@carrier("llama", "mistral3")
def llama_as_mistral3(model: GgufModel) -> Edit:
    """The edit for llama as mistral3, which has the same graph and layout: only the architecture is renamed."""
    return Edit(arch="mistral3").merged(whole_rotation(model, "mistral3"))


@carrier("internlm2", "llama")
@carrier("xverse", "llama")
@carrier("baichuan", "llama")
@carrier("ernie4_5", "llama")
def renamed_llama(model: GgufModel) -> Edit:
    """The edit for architectures with the graph and layout of llama: only the architecture is renamed."""
    return Edit(arch="llama").merged(whole_rotation(model, "llama"))

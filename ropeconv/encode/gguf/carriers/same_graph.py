"""Carriers with the same graph: qwen2 as llama with its rows interleaved, and architectures that only need renaming."""

from __future__ import annotations

from ....formats.gguf import Edit
from ..gguf_model import GgufModel
from .carrier import carrier, interleave, whole_rotation


@carrier("qwen2", "llama")
def qwen2_as_llama(model: GgufModel) -> Edit:
    """llama.cpp's llama has biases too, and pairs neighbours."""
    return Edit(arch="llama", changes=interleave(model)).merged(whole_rotation(model, "llama"))


@carrier("qwen2", "mistral3")
def qwen2_as_mistral3(model: GgufModel) -> Edit:
    """As llama, under the name whose graph also reads yarn's betas."""
    return Edit(arch="mistral3", changes=interleave(model)).merged(whole_rotation(model, "mistral3"))


@carrier("llama", "mistral3")
def llama_as_mistral3(model: GgufModel) -> Edit:
    """The same graph."""
    return Edit(arch="mistral3").merged(whole_rotation(model, "mistral3"))


@carrier("internlm2", "llama")
@carrier("xverse", "llama")
@carrier("baichuan", "llama")
@carrier("ernie4_5", "llama")
def renamed_llama(model: GgufModel) -> Edit:
    """The same graph and layout."""
    return Edit(arch="llama").merged(whole_rotation(model, "llama"))

"""GGUF files as bytes: headers, edits, new files, changes in place."""

from .edit import AddedTensor, Change, Edit, RewrittenHeader, rewrite
from .file import GgufFile
from .header import GgufHeader, TensorInfo, read_header
from .values import GgufValue, boolean, f32, f32_array, string, u32

__all__ = [
    "AddedTensor",
    "Change",
    "Edit",
    "GgufFile",
    "GgufHeader",
    "GgufValue",
    "RewrittenHeader",
    "TensorInfo",
    "boolean",
    "f32",
    "f32_array",
    "read_header",
    "rewrite",
    "string",
    "u32",
]

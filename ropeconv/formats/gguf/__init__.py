"""GGUF files as bytes: headers, edits, new files, changes in place."""

from .edit import Added, Change, Edit, Rewritten, rewrite
from .file import GgufFile
from .header import Header, TensorInfo, read_header
from .values import Value, boolean, f32, f32_array, string, u32

__all__ = [
    "Added",
    "Change",
    "Edit",
    "GgufFile",
    "Header",
    "Rewritten",
    "TensorInfo",
    "Value",
    "boolean",
    "f32",
    "f32_array",
    "read_header",
    "rewrite",
    "string",
    "u32",
]

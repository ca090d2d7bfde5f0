"""Kinds of files, known by their first bytes.

Begin with `kind_of`; a name decides only where there is no file yet.
"""

import os
import stat
import struct
from pathlib import Path
from typing import Literal

from .files import FROZEN, GRAPHS, expand_home, graph_names, journal_of, open_regular

Kind = Literal[
    "missing",
    "folder",
    "special",
    "unreadable",
    "empty",
    "gguf",
    "safetensors",
    "onnx",
    "openvino",
    "npy",
    "npz",
    "torch",
    "pickle",
    "zip",
    "json",
    "text",
    "lfs",
    "html",
    "ggml",
    "imatrix",
    "hdf5",
    "tflite",
    "executorch",
    "tensorrt",
    "archive",
    "unknown",
]

WORDS: dict[Kind, str] = {
    "missing": "missing",
    "folder": "a folder",
    "special": "not a regular file",
    "unreadable": "not readable by you",
    "empty": "empty",
    "gguf": "a GGUF file",
    "safetensors": "a safetensors file",
    "onnx": "an ONNX graph",
    "openvino": "an OpenVINO graph",
    "npy": "an array of numpy",
    "npz": "an archive of numpy arrays",
    "torch": "a file of torch.save",
    "pickle": "a Python pickle, such as torch.save made before 1.6",
    "zip": "a ZIP archive",
    "json": "a JSON file",
    "text": "a text file",
    "lfs": "a Git LFS pointer, not the file itself",
    "html": "a web page, not the file itself",
    "ggml": "a file in the format before GGUF",
    "imatrix": "an importance matrix of llama.cpp",
    "hdf5": "an HDF5 file",
    "tflite": "a LiteRT model",
    "executorch": "an ExecuTorch program",
    "tensorrt": "a TensorRT engine",
    "archive": "a compressed archive",
    "unknown": "in a format that ropeconv does not know",
}
"""How messages say what a file is: "PATH is ..."."""

REPAIRS: dict[Kind, str] = {
    "special": "give a regular file",
    "unreadable": "change its permissions, or give another file",
    "empty": "download it again",
    "npz": "save the one array with numpy.save, and give the .npy file",
    "torch": "give its folder, with config.json or params.json beside the weights",
    "pickle": "give its folder, with config.json or params.json beside the weights",
    "zip": "unpack it, and give what is inside",
    "lfs": "run `git lfs pull` in its repository, or download the file",
    "html": "download the file itself, with a token where the repository is gated",
    "ggml": (
        "convert it with an older llama.cpp (convert-llama-ggml-to-gguf.py), or download the GGUF"
        " file"
    ),
    "imatrix": "give the model that it belongs to",
    "hdf5": "give a checkpoint with safetensors",
    "tflite": "run `ropeconv apply` on the checkpoint, and export its output",
    "executorch": "run `ropeconv apply` on the checkpoint, and export its output",
    "tensorrt": "run `ropeconv apply` on the checkpoint, and build the engine from its output",
    "archive": "unpack it, and give what is inside",
}
"""The repair for each kind of file that no command reads."""

HEAD = 4096
"""Bytes of a file that decide."""
MOST_HEADER = 1 << 40
"""A length of a safetensors header that only a file of another format claims."""
MAGIC: tuple[tuple[int, bytes, Kind], ...] = (
    (0, b"GGUF", "gguf"),
    (0, b"\x93NUMPY", "npy"),
    (0, b"version https://git-lfs.github.com/spec/", "lfs"),
    # ggml, ggmf, ggjt and ggla of llama.cpp before August 2023, written as little-endian numbers
    (0, b"lmgg", "ggml"),
    (0, b"fmgg", "ggml"),
    (0, b"tjgg", "ggml"),
    (0, b"algg", "ggml"),
    (0, b"\x89HDF\r\n\x1a\n", "hdf5"),
    (4, b"TFL3", "tflite"),
    (4, b"ET12", "executorch"),
    (0, b"ftrt", "tensorrt"),
    (0, b"\x1f\x8b", "archive"),
    (0, b"BZh", "archive"),
    (0, b"\xfd7zXZ\0", "archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "archive"),
    (0, b"\x28\xb5\x2f\xfd", "archive"),
    (0, b"Rar!\x1a\x07", "archive"),
    (257, b"ustar", "archive"),
)
"""A place in the file, the bytes there, and the kind that has them."""
MOST_NAME = 128
"""More bytes than the name of a weight has in a GGUF file."""
PICKLES = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
ONNX_FIELDS = b"\x12\x1a\x22\x28\x32\x3a\x42\x72"
"""Tags of the fields of ModelProto that can follow `ir_version`, the first (onnx/onnx.proto)."""
ENTRY = struct.Struct("<26xHH")
"""The header of an entry of a ZIP archive, with the lengths of its name and of what follows."""


def kind_of(path: str | os.PathLike[str]) -> Kind:
    """Return the kind of what is at a path, by the first bytes of the file there.

    Its name does not count. A missing, special or unreadable file has a kind of its own, so that
    no OSError is raised.

    Args:
        path: May begin with `~`.
    """
    place = expand_home(path)
    try:
        status = os.stat(place)
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except (OSError, ValueError):  # ValueError: a name with a zero byte
        return "unreadable" if os.path.lexists(place) else "missing"

    if stat.S_ISDIR(status.st_mode):
        return "folder"
    if not stat.S_ISREG(status.st_mode):
        return "special"

    try:
        with open_regular(place) as file:
            return kind_of_bytes(file.read(HEAD))
    except OSError:
        return "unreadable"


def kind_of_bytes(head: bytes) -> Kind:
    """Return the kind of a file that begins with some bytes.

    Args:
        head: The first 4,096 of them, or the whole file.
    """
    # from the surest to the weakest sign: bytes that only one format has, then the formats
    # without such bytes, then texts
    if not head:
        return "empty"
    for place, magic, kind in MAGIC:
        if head.startswith(magic, place):
            return kind
    if head.startswith(b"PK\x03\x04"):
        return _archive(head)
    if head.startswith(PICKLES):
        return "pickle"

    # safetensors: the length of the header in 8 bytes, then the header, a JSON object ("{}" has 2)
    header_size = int.from_bytes(head[:8], "little")
    has_brace = head[8:9] == b"{"
    if has_brace and 2 <= header_size < MOST_HEADER:
        return "safetensors"

    # ONNX, in protobuf: 0x08 is the tag of ir_version, a small number, and another field follows
    if len(head) > 2:
        tag, version, next_tag = head[:3]
        if tag == 0x08 and 1 <= version < 64 and next_tag in ONNX_FIELDS:
            return "onnx"

    if _is_imatrix(head):
        return "imatrix"
    return _kind_of_text(head)


def _is_imatrix(head: bytes) -> bool:
    """Whether a file begins as imatrix.dat of llama.cpp, which has no magic number.

    It begins with the number of entries, and each of these with the length of its name, the name
    of a weight, a number of chunks and a number of values (save_imatrix_legacy in imatrix.cpp).
    """
    if len(head) < 8:
        return False
    entries, length = struct.unpack_from("<ii", head)
    if entries < 1 or not 1 <= length < MOST_NAME:
        return False
    name = head[8 : 8 + length]
    return name.endswith(b".weight") and name.isascii() and b"\0" not in name


def _archive(head: bytes) -> Kind:
    """Return the kind of a ZIP archive, from the name of its first entry."""
    # torch.save puts NAME/data.pkl first, and numpy.savez files that end in .npy
    if len(head) < ENTRY.size:
        return "zip"
    length, _ = ENTRY.unpack_from(head)
    name = head[ENTRY.size : ENTRY.size + length]
    if name.endswith(b"/data.pkl"):
        return "torch"
    if name.endswith(b".npy"):
        return "npz"
    return "zip"


def _kind_of_text(head: bytes) -> Kind:
    """Return the kind of a file by its first bytes, if they are text; else "unknown"."""
    if b"\0" in head:
        return "unknown"
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        # a file may be longer than its head, which then may end within a character: UTF-8 has up to
        # 4 bytes for one
        may_be_cut_off = len(head) >= HEAD and problem.start >= len(head) - 4
        if not may_be_cut_off:
            return "unknown"
        text = head[: problem.start].decode("utf-8-sig")

    # a page of an error in place of a download, an OpenVINO graph (XML), or JSON
    text = text.lstrip()
    beginning = text[:64].lower()
    if beginning.startswith(("<!doctype html", "<html")):
        return "html"
    if text.startswith(("<?xml", "<net")) and "<net" in text:
        return "openvino"
    if text.startswith(("{", "[")):
        return "json"
    return "text"


def first_text(path: Path) -> str:
    """Return the first characters of a text file; bytes that are not text become marks."""
    with open_regular(path) as file:
        return file.read(HEAD).decode("utf-8", "replace")


UNCLEAR_KINDS: frozenset[Kind] = frozenset(
    {"missing", "special", "unreadable", "empty", "lfs", "html", "text", "unknown"}
)
"""Kinds that say nothing on what a file was meant to be, so that its name does."""


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Whether a file is GGUF by its first bytes; a missing, empty or damaged one by its name.

    A file that an interrupted change in place has left has a journal, and may begin with other
    bytes.
    """
    kind = kind_of(path)
    if kind in UNCLEAR_KINDS:
        return has_gguf_name(path) or os.path.lexists(journal_of(expand_home(path)))
    return kind == "gguf"


def has_gguf_name(path: str | os.PathLike[str]) -> bool:
    """Whether a name is that of a GGUF file, which may not exist yet or be on the Hub."""
    return os.fspath(path).lower().endswith(".gguf")


def refusal(path: str | os.PathLike[str], needed: str) -> str:
    """Return a sentence on a file that a command cannot use.

    Args:
        path: The file.
        needed: The kind that the command does use, such as "a GGUF file".
    """
    kind = kind_of(path)
    if kind == "missing":
        return f"{path} does not exist; give {needed}"
    repair = REPAIRS.get(kind)
    if repair is None:
        return f"{path} is {WORDS[kind]}, and {needed} is needed there"
    return f"{path} is {WORDS[kind]}; {repair}"


FROZEN_KINDS: dict[Kind, str] = {
    "executorch": FROZEN[".pte"],
    "tflite": FROZEN[".tflite"],
    "tensorrt": FROZEN[".engine"],
}


def frozen_words(path: Path) -> str:
    """Return what kind of final graph a file is, such as "a LiteRT model"; empty for others."""
    kind = kind_of(path)
    if kind in FROZEN_KINDS:
        return FROZEN_KINDS[kind]
    if kind in UNCLEAR_KINDS or kind == "folder":  # Core ML has folders
        return FROZEN.get(path.suffix, "")
    return ""


def is_graph(reference: str) -> bool:
    """Whether a path is a compiled graph, or a folder that holds graphs and no other weights."""
    path = expand_home(reference)
    kind = kind_of(path)
    if frozen_words(path) or kind in ("onnx", "openvino"):
        return True
    if kind == "folder":
        return bool(graph_names(path))
    return kind in UNCLEAR_KINDS and path.suffix in GRAPHS

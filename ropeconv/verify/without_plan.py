"""Compares an output with its source where no plan follows from its receipt: weights and copies, and the other keys.

What the RoPE keys compute is compared before a forward pass. What cannot be compared is gathered as `unverified`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..encode import all_encodings
from ..errors import Disagreement
from ..formats.copying import Advance
from ..formats.regular import read_text
from ..formats.safetensors import read_header
from ..receipts.receipt import FileRecord
from ..runtimes.read_config import QUERY_SCALE
from ..sources import Source
from ..validate.comparison import Comparison
from .extra_files import is_document
from .folder import WEIGHTS, compare_names, compare_weights, is_weights
from .ranges import Copied, Range, first_difference
from .texts import json_differences
from .verified import Found
from .weights import unchanged

CONFIG = "config.json"
ROPE = ("rope_scaling", "rope_parameters", "rope_theta", "original_max_position_embeddings", QUERY_SCALE)
"""Keys of the RoPE that outputs of every family may have."""


@dataclass(frozen=True)
class CopiesCheck:
    """The comparison of a folder with its source alone.

    comparison: the output and its source. found: gathers the differences. advance: called with the bytes of weights
    that were compared since the last call.
    """

    comparison: Comparison
    found: Found
    advance: Advance

    def run(self) -> None:
        """Compares every file. Raises Disagreement for GGUF files, of which nothing is known to be copied."""
        baked, receipt, source = self.comparison.baked, self.comparison.receipt, self.comparison.source
        if not isinstance(source, Source) or not receipt.files:
            raise Disagreement(f"{baked} cannot be compared with what its recipe and its source give; run apply again")
        if receipt.original is not None:
            self.found.unverified.append("what its receipt says of the first source was not compared")
        for file in receipt.files:
            self.found.files += 1
            if file.name == CONFIG:
                self._config(source)
            elif file.name.endswith(WEIGHTS):
                self._weights(file.name, source)
            elif file.action == "copy":
                self._copy(file, source)
            else:
                self.found.unverified.append(f"{file.name} was compared with the receipt alone")
        origins = {file.origin or file.name for file in receipt.files}
        for one in source.copied_files()[0]:
            if one.name not in origins and not is_weights(one.name):
                self.found.differs(f"it has no {one.name}", harmless=is_document(one.name))
        compare_names(baked, (file.name for file in receipt.files), self.found)

    def _config(self, source: Source) -> None:
        """Compares the keys of config.json that are not of the RoPE."""
        keys = source.family.keys
        rope = {*ROPE, *keys.context, *keys.theta}
        ours = read_text(self.comparison.baked / CONFIG, CONFIG)
        differences = json_differences(ours, source.text(CONFIG) or "")
        if differences is None:
            self.found.differs(f"{CONFIG} is another one")
        for key, what in differences or ():
            if not rope & set(key.split(".")):
                self.found.differs(f"{CONFIG} {what}")

    def _weights(self, name: str, source: Source) -> None:
        """Compares every tensor of a file with the one of that name in the source, whatever file that is in."""
        path, encoding = self.comparison.baked / name, all_encodings().get(self.comparison.receipt.encoding)
        if not path.is_file():
            return self.found.differs(f"it has no {name}")
        if encoding is None or encoding.folds:
            return self.found.unverified.append(
                f"{name} may have folded weights, and was compared with the receipt alone"
            )
        header = read_header(path)
        places = {tensor: file for file, there in source.headers.items() for tensor in there.tensors}
        ranges: list[Range] = []
        for tensor in sorted(header.tensors.values(), key=lambda tensor: tensor.start):
            other = source.tensors.get(tensor.name)
            if other is None or (other.dtype, other.shape) != (tensor.dtype, tensor.shape):
                return self.found.differs(f"{tensor.name} of {name} is not that of its source")
            at = header.data_start + tensor.start
            if not self.found.options.quick:
                file = places[tensor.name]
                place = source.headers[file].data_start + other.start
                ranges.append(unchanged(at, header.data_start + tensor.stop, source, file, place))
        if ranges:
            self.found.bytes += path.stat().st_size
            head = Copied(0, header.data_start, path, 0)  # compared above
            compare_weights(path, name, [head, *ranges], self.found, self.advance)
        return None

    def _copy(self, file: FileRecord, source: Source) -> None:
        """Compares a file that is copied with that of the source."""
        path, origin = self.comparison.baked / file.name, file.origin or file.name
        size = {one.name: one.size for one in source.files()}.get(origin)
        if size is None or not path.is_file() or path.stat().st_size != size:
            return self.found.differs(f"{file.name} is not that of its source")
        if is_weights(file.name):
            if self.found.options.quick:
                return None
            self.found.bytes += size
        if first_difference(path, [Copied(0, size, source.path(origin), 0)], self.advance) is not None:
            self.found.differs(f"{file.name} is not that of its source")
        return None

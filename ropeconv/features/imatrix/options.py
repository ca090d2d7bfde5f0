"""The options of `imatrix`, each declared once, as `ropeconv.options` says."""

from dataclasses import dataclass

from ropeconv.options import GENERAL, BoundedOptions, option


@dataclass(frozen=True)
class PieceOptions(BoundedOptions):
    """How a text is cut into pieces, which the model reads one after the other."""

    chunk_size: int = option(512, "Tokens of a piece of the text.", GENERAL, metavar="N", least=16)
    """The default is that of llama-imatrix."""

    chunks: int = option(0, "The most pieces (default: all).", GENERAL, metavar="N", least=0)

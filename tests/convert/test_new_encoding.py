"""Every encoding is known by its name; tests/test_additions.py adds one as a file."""

from ropeconv.convert.encoding import ENCODINGS
from ropeconv.convert.gguf_encoding import GGUF_ENCODINGS
from ropeconv.options import encoding_names


def test_the_command_line_lists_every_encoding_by_the_names_of_files() -> None:
    """`--help` does not import them."""
    assert set(encoding_names()) == {"auto", *ENCODINGS, *GGUF_ENCODINGS, "carrier"}

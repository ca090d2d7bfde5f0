"""A command that is refused, as in the tests of the command line."""

from ..cli.conftest import refuses as refuses

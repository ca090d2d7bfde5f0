"""Fixtures: a probe for all tests."""

from ..cli.conftest import shared_probe

__all__ = ["shared_probe"]

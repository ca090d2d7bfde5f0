"""Tests of the feature derivation."""

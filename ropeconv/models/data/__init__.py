"""Families of the package: one TOML file each, and hooks where a family needs some."""

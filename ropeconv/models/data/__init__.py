"""Families of the package, one TOML file each, and beside it the hooks of a family that needs
some.
"""

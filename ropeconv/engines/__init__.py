"""Engines, which run models: transformers with patched rotary modules, llama.cpp in its own
process, and servers.
"""

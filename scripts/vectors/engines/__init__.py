"""Programs that compute the logits of packets, one for each engine.

Each runs in the Python of its engine: PROGRAM FOLDER PACKET..., or PROGRAM --version. They import
nothing of ropeconv.
"""

"""Probes: what an installed runtime computes from a config, asked of its own model class.

`programs/ask_NAME.py` asks one runtime. It runs in the environment of the runtime, which need not
have ropeconv, as `run_probe.py ask_NAME`, and imports the standard library, `probe_protocol` beside
it and the runtime. `installed.py` finds the runtimes and starts these programs, and `outcome.py`
compares their answers with a schedule.
"""

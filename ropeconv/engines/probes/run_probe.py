"""Answer questions about configs by a module beside this one: `python run_probe.py ask_vllm`."""

import sys

import probe_protocol

if __name__ == "__main__":
    probe_protocol.main(sys.argv[1])

"""Answer questions about configs by a module beside this one: `python run_probe.py ask_vllm`."""

import os
import sys
from typing import TYPE_CHECKING

# Python leaves the folder of a script out where PYTHONSAFEPATH is set
sys.path.append(os.path.dirname(os.path.abspath(__file__)))

if TYPE_CHECKING:
    from . import probe_protocol
else:
    import probe_protocol

if __name__ == "__main__":
    probe_protocol.main(sys.argv[1])

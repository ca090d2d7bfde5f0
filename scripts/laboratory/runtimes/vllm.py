"""vLLM in the lab: the Python files of its wheels, with the version of transformers that fits to
each.
"""

import sys
from pathlib import Path

from ..environment import Environment, LabRuntime, installed, wheel_sources

PURE = (
    "aiohappyeyeballs",
    "aiohttp",
    "aiosignal",
    "annotated-doc",
    "anthropic",
    "anyio",
    "apache-tvm-ffi",
    "astor",
    "attrs",
    "blake3",
    "cachetools",
    "cbor2",
    "cloudpickle",
    "compressed-tensors==0.17.0",
    "depyf",
    "dill",
    "diskcache",
    "distro",
    "docstring-parser",
    "einops",
    "fastapi==0.136.*",
    "frozenlist",
    "gguf",
    "httpcore",
    "httpx",
    "httpx-sse",
    "idna",
    "ijson",
    "importlib-metadata",
    "interegular",
    "jiter",
    "jsonschema",
    "jsonschema-specifications",
    "lark",
    "llguidance",
    "llvmlite",
    "loguru",
    "mcp",
    "mistral_common",
    "model-hosting-container-standards",
    "msgspec",
    "multidict",
    "numba",
    "openai",
    "opencv-python-headless",
    "openai-harmony",
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-semantic-conventions",
    "orjson",
    "outlines_core",
    "partial-json-parser",
    "pillow",
    "prometheus_client",
    "prometheus_fastapi_instrumentator",
    "propcache",
    "psutil",
    "py-cpuinfo",
    "pybase64",
    "pycountry",
    "pydantic-extra-types",
    "pydantic-settings",
    "python-dotenv",
    "python-json-logger",
    "python-multipart",
    "pyzmq",
    "referencing",
    "rpds-py",
    "scipy",
    "sentencepiece",
    "setproctitle",
    "sniffio",
    "sse-starlette",
    "starlette",
    "tiktoken",
    "uvloop",
    "watchfiles",
    "xgrammar",
    "yarl",
    "zipp",
)
"""What vLLM imports on its way to its models, without what those packages need themselves; torch is
that of the lab.
"""
TRANSFORMERS = ((19, "4.57.6"), (29, "5.8.1"), (33, "5.16.1"), (1000, "5.20.2"))
"""The version of transformers for vLLM 0.x below the number, out of those that its wheel asks
for.
"""

VERSIONS = (
    "0.11.0",
    "0.11.2",
    "0.12.0",
    "0.16.0",
    "0.17.1",
    "0.18.1",
    "0.19.1",
    "0.20.2",
    "0.24.0",
    "0.25.0",
    "0.26.0",
    "0.27.1",
    "0.28.0",
    "0.29.0",
    "0.30.0",
    "0.31.0",
    "0.32.0",
    "0.33.0",
)


def install(version: str, folder: Path) -> Environment:
    """Make the environment of a version in a folder, beside those of the other versions."""
    minor = int(version.split(".")[1])
    transformers = next(name for below, name in TRANSFORMERS if minor < below)
    shared = folder.parent / "vllm-packages"
    packages = installed(shared / "pure", *PURE, requirements=False)
    vision = installed(shared / "torchvision", "torchvision==0.28.0", requirements=False)
    return Environment(
        python=Path(sys.executable),
        path=(
            wheel_sources("vllm", version, folder),
            installed(shared / f"transformers-{transformers}", f"transformers=={transformers}"),
            packages,
            vision,
        ),
        variables=(("OMP_NUM_THREADS", "1"),),
    )


RUNTIME = LabRuntime(
    name="vllm",
    program="ask_vllm",
    versions=VERSIONS,
    quick=("0.33.0",),
    install=install,
    how=(
        "the model classes of the wheel, built on a meta device from its own reading of the config,"
        " and their rotary embeddings run on a CPU"
    ),
)

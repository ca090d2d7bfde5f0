"""Running inference servers (vLLM, SGLang, llama-server): validation and measurements on them."""

from ropeconv.rope.features import Feature

feature = Feature(
    functions={"validate_server": "ropeconv.features.servers.validation"},
    hooks={
        "validate_server": "ropeconv.features.servers.validation:validate_server",
        "connect_server": "ropeconv.features.servers.connection:connect",
    },
)

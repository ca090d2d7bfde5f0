"""Commands and options by the names that other tools give them, for the sentences about unknown
ones.
"""

OTHER_COMMANDS = {
    "archs": "list archs",
    "bake": "apply",
    "check": "validate",
    "convert": "apply",
    "diff": "compare",
    "evaluate": "eval",
    "export": "apply",
    "extend": "apply",
    "families": "list families",
    "fit": "inspect",
    "fits": "inspect",
    "help": "--help",
    "info": "inspect",
    "memory": "inspect",
    "merge": "compare",
    "methods": "list methods",
    "models": "list families",
    "perplexity": "eval",
    "publish": "push",
    "quantize": "apply",
    "recommend": "advise",
    "runtimes": "list runtimes",
    "schedule": "plot",
    "show": "inspect",
    "test": "validate",
    "train": "train-config",
    "undo": "restore",
    "upload": "push",
    "verify": "validate",
    "version": "--version",
}
"""Commands that people type by other names."""

OTHER_OPTIONS = {
    "--quantize": "--outtype",
    "--quant": "--outtype",
    "--gguf": "--to gguf",
    "--format": "--to",
    "--output": "-o",
    "--max-model-len": "--context",
    "--ctx-size": "--context",
    "--max-position-embeddings": "--context",
    "-c": "--context",
    "--num-ctx": "--context",
    "--hf-overrides": "--to overrides",
    "--rope-scale": "--linear",
    "--rope-theta": "--theta",
    "--rope-freq-base": "--theta",
    "--rope-scaling": "--yarn",
    "--factor": "--yarn",
    "--method": "--yarn",
    "--lora": "--adapter",
    "--overwrite": "--force",
    "--target": "--runtime",
    "--engine": "--runtime",
    "--backend": "--runtime",
    "--dtype": "--outtype",
    "--source": "--against",
    "--trainer": "--for",
    "--output-dir": "-o",
    "--pi": "--linear",
    "--rope-type": "--yarn",
    "--no-validate": "--validate off",
    "--original-max-position-embeddings": "--original-context",
}
"""Options that people type by other names, such as those of runtimes. Commands without the second
one ignore it.
"""

PUSH_ONLY = (
    "--public",
    "--revision",
    "--commit-message",
    "--exist-ok",
    "--overwrite-card",
    "--base-model",
    "--token",
)
"""Options of publishing that `apply` does not have."""

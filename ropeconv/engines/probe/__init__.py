"""The frequencies that the installed transformers computes from a config, asked in a process of its own."""

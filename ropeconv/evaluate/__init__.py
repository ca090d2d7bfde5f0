"""What an extension does to a model: losses and retrieval beyond the trained context, measured in an engine."""

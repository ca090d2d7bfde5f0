"""Real engines on tiny extended models, beyond their trained length, and transcripts of them."""

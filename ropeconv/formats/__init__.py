"""Files as bytes: safetensors headers, shard indices, JSON, vectors, copies."""

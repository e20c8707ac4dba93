"""The golden store: accepted observations, kept as safetensors with a manifest beside them."""

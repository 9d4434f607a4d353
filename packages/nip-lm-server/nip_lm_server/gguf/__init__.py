"""GGUF files as models for transformers."""

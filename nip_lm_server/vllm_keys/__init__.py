"""A directory for the Python path of vLLM's own environment; see `nip_vllm_keys`."""

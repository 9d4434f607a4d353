"""A directory for the Python path of vLLM's own environment; see `nip_vllm_keys`.

It lies beside the engines and in none of them: all engines, the chat templates and the training
use `nip_control_tokens`, so it stands below them.
"""

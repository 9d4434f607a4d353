"""A directory for the Python path of vLLM's own environment; see `nip_vllm_keys`.

It lies beside the engines and in none of them: `nip_control_tokens` is what all of them, the chat
templates and the training use, so it stands below them.
"""

"""``python -m nip_core.lm_server``, which goes on working: it runs ``python -m nip_lm_server``."""

import runpy

if __name__ == "__main__":
    runpy.run_module("nip_lm_server", run_name="__main__", alter_sys=True)

"""Run a server for the tests: ENGINE MODEL STATE [REPLIES]. Prints address and key, ends with its
input. It runs in nip's own environment.
"""

import sys
from pathlib import Path

from nip_base.spec import ServerSpec
from nip_core.models import resolve_model
from nip_lm_server import launch as owner

engine, model, state, *replies = sys.argv[1:]
if engine == "embedded":
    spec = ServerSpec(engine, resolve_model(model), served_model_name=model)
else:
    spec = ServerSpec(engine, model, replies=replies[0] if replies else None)
handle = owner.start_or_attach(spec, Path(state), timeout_s=600)
print(handle.url, handle.api_key, flush=True)
sys.stdin.read()
owner.stop(handle)

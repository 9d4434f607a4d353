"""Run a server for the tests: ENGINE STATE. Prints address and key, ends with its input.

It runs in nip's own environment. The model answers to `tiny` and to `gpt-4o-mini`, a name that
litellm knows. The embedded one has a chat template with tools, which the bundled one lacks.
"""

import shutil
import sys
from pathlib import Path

from nip_base.spec import EngineSpec, ServerSpec
from nip_core.models import BUNDLED
from nip_lm_server import launch as owner

sys.path.append(str(Path(__file__).parents[4] / "tests" / "helpers"))
from tiny_model import TOOL_TEMPLATE

REPLIES = """\
rules:
  - when: {last_contains: "in JSON"}
    replies: [{text: '{{"verdict": "accept", "sure": true}}'}]
default: [{text: "It looks right."}]
training: {seconds: 0}
"""

engine, state = sys.argv[1], Path(sys.argv[2])
state.mkdir(parents=True)
if engine == "embedded":
    model, replies = str(state / "model"), None
    shutil.copytree(BUNDLED["tiny"], model)
    Path(model, "chat_template.jinja").write_text(TOOL_TEMPLATE)
else:
    model, replies = "tiny", str(state / "replies.yaml")
    Path(replies).write_text(REPLIES)
known = EngineSpec(engine, model, replies=replies, served_model_name="gpt-4o-mini")
spec = ServerSpec(engine, model, replies=replies, served_model_name="tiny", more_engines=(known,))
handle = owner.start_or_attach(spec, state / "state", timeout_s=180)
print(handle.url, handle.api_key, flush=True)
sys.stdin.read()
owner.stop(handle)

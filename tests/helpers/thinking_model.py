"""The bundled model with a chat template for models that think.

THINKING             thoughts are written before the last answer, and left out of earlier ones
make_thinking_model  a directory with the bundled model and that template
"""

import shutil
from pathlib import Path

from nip_core.models import resolve_model

THINKING = """\
{%- set newest = namespace(question=-1) -%}
{%- for message in messages -%}
  {%- if message.role != 'assistant' -%}{%- set newest.question = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
  {%- if message.role == 'assistant' -%}
    {%- set parts = message.content.split('</think>') -%}
    {%- set said = parts[-1].lstrip('\\n') -%}
    {%- set thoughts = message.reasoning_content or '' -%}
    {%- if parts | length > 1 and not thoughts -%}
      {%- set thoughts = parts[0].split('<think>')[-1].strip('\\n') -%}
    {%- endif -%}
    {{- '<|assistant|>' -}}
    {%- if loop.index0 > newest.question -%}
      {{- '<think>\\n' + thoughts + '\\n</think>\\n\\n' -}}
    {%- endif -%}
    {{- said + '<|end|>' -}}
  {%- else -%}
    {{- '<|' + message.role + '|>' -}}
    {%- if message.name -%}{{- message.name + '\\n' -}}{%- endif -%}
    {{- message.content + '<|end|>' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|assistant|>' -}}
  {%- if enable_thinking is defined and not enable_thinking -%}
    {{- '<think>\\n\\n</think>\\n\\n' -}}
  {%- endif -%}
{%- endif -%}"""
"""Of the kind that Qwen3 has: it thinks unless told not to, and forgets what it thought before."""


def make_thinking_model(directory: Path) -> Path:
    """Write the bundled model with that template to `directory`; it does not think yet."""
    shutil.copytree(resolve_model("tiny"), directory)
    (directory / "chat_template.jinja").write_text(THINKING)
    return directory

"""The code of docs/api.md runs as it stands, against a server."""

import ast
import re
from pathlib import Path

from served_here import KEY, serve

from nip_base.spec import ServerSpec

PAGE = Path(__file__).parents[4] / "docs" / "api.md"


async def test_the_page_plays_trains_and_plays_on(tmp_path, monkeypatch, capsys):
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NIP_API_KEY", "")  # the page sets it; afterwards it is as it was
    assert 'os.environ["NIP_API_KEY"] = "k"' in code and KEY == "k"
    spec = ServerSpec("deterministic", "tiny", served_model_name="tiny")
    async with serve(tmp_path / "server", spec=spec) as here:
        code = code.replace("http://127.0.0.1:8000", here.url).replace("sleep(1)", "sleep(0.01)")
        code = code.replace('"lm_server": {', '"fine_tuning": {"settle_s": 0}, "lm_server": {')
        names = {}
        done = eval(compile(code, PAGE, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        await done
    assert names["group"].model_name == names["agents"]["verifier"].model_name != "tiny"
    assert names["group"].model_name in capsys.readouterr().out
    assert (tmp_path / "runs/by-hand/iterations/0000/jobs/both.json").exists()

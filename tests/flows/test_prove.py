"""The command `nip prove`: one line for what is wrong, and exit codes for pipelines."""

import asyncio
import json

from served_here import KEY, serve

PROBE = {"tokens": [5, 6, 7], "logprobs": [-1.0, -2.0], "base_logprobs": [-3.0, -4.0]}


async def test_every_way_to_fail_has_its_exit_code_and_one_line_without_the_key(nip, tmp_path):
    adapter, empty = tmp_path / "adapter", tmp_path / "empty"
    adapter.mkdir()
    empty.mkdir()
    (adapter / "probe.json").write_text(json.dumps({**PROBE, "dtype": "float32"}))
    async with serve(tmp_path / "state") as here:
        wrong = {
            (2, "nip prove needs MODEL"): (here.url,),
            (2, "URL: an address"): ("not-an-address", "sim", str(adapter)),
            (2, "no such directory"): (here.url, "sim", str(tmp_path / "nowhere")),
            (2, "no adapter: it has neither"): (here.url, "sim", str(empty)),
            (2, "has no model 'other'"): (here.url, "other", str(adapter)),
            (2, "no server of OpenAI's protocol"): (f"{here.url}/nip", "sim", str(adapter)),
            (2, "--quantization 'awq'"): (
                *(here.url, "sim", str(adapter)), "--quantization", "awq",
            ),
            (3, "nobody answers"): ("http://127.0.0.1:9", "sim", str(adapter)),
        }  # fmt: skip
        for (code, words), arguments in wrong.items():
            done = await asyncio.to_thread(
                nip, "prove", *arguments, environment={"NIP_API_KEY": KEY}
            )
            lines = done.stderr.splitlines()
            assert done.returncode == code and len(lines) == 1, (arguments, done)
            assert words in lines[0] and not done.stdout
        # The engine of made-up answers has no log-probabilities.
        asked = ("prove", here.url, "sim", str(adapter))
        done = await asyncio.to_thread(nip, *asked, environment={"NIP_API_KEY": KEY})
        assert done.returncode == 9 and "no log-probabilities" in done.stdout, done
        done = await asyncio.to_thread(
            nip, *asked, "--json", environment={"NIP_API_KEY": "another-key"}
        )
        assert done.returncode == 2 and "refuses the key" in done.stderr
        assert "another-key" not in done.stderr + done.stdout
        done = await asyncio.to_thread(nip, *asked, "--json", environment={"NIP_API_KEY": KEY})
        document = json.loads(done.stdout)
        assert document["exit_status"] == done.returncode == 9
        assert [verdict["kind"] for verdict in document["verdicts"]] == ["cannot_tell"]

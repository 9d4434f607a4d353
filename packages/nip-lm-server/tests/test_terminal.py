"""What the server logs of strangers' texts, no terminal obeys."""

import subprocess
import sys


def test_a_log_line_and_its_traceback_have_no_codes_but_line_ends_and_tabs() -> None:
    program = (
        "import logging; from nip_lm_server.terminal import log_here, say; log_here()\n"
        "text = 'a\\x1b]0;title\\x07 \\x9b1m \\u202eturned\\n\\tb'\n"
        "try: raise ValueError(text)\n"
        "except ValueError: logging.getLogger('nip').exception('file %s', text)\n"
        "say(text)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, timeout=20
    )
    for shown in (done.stdout.decode(), done.stderr.decode()):
        assert "a\\u001b]0;title\\u0007 \\u009b1m \\u202eturned\n\tb" in shown
        assert "\x1b" not in shown and "\x9b" not in shown and "\u202e" not in shown
    assert "Traceback" in done.stderr.decode()

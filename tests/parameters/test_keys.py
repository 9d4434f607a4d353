"""Keys: as a header can carry them."""

import pytest

from nip_core.errors import SettingsError
from nip_core.redaction import read_key


def test_a_key_of_a_file_with_windows_line_ends_is_sent_as_a_header_can_carry_it() -> None:
    for value, key in (("k", "k"), ("k\r\n", "k"), ("\tk ", "k"), ("\r\n", ""), ("", "")):
        assert read_key({"NIP_API_KEY": value}, "NIP_API_KEY") == key
    for value in ("k\rl", "k\x00", "schl\u00fcssel", "\ufeffk"):
        with pytest.raises(SettingsError, match="variable NIP_API_KEY: the key in it") as refused:
            read_key({"NIP_API_KEY": value}, "NIP_API_KEY")
        assert value not in str(refused.value)

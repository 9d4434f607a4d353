"""Keys as a header can carry them, and addresses as they may be shown."""

import pytest

from nip_core.errors import SettingsError
from nip_core.redaction import read_key, remove_users, show_address


def test_a_key_of_a_file_with_windows_line_ends_is_sent_as_a_header_can_carry_it() -> None:
    for value, key in (("k", "k"), ("k\r\n", "k"), ("\tk ", "k"), ("\r\n", ""), ("", "")):
        assert read_key({"NIP_API_KEY": value}, "NIP_API_KEY") == key
    for value in ("k\rl", "k\x00", "schl\u00fcssel", "\ufeffk"):
        with pytest.raises(SettingsError, match="variable NIP_API_KEY: the key in it") as refused:
            read_key({"NIP_API_KEY": value}, "NIP_API_KEY")
        assert value not in str(refused.value)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://user:s3cret/pw@localhost:9/api", "http://***@localhost:9/api"),
        ("http://user:s3@cret?pw#x@localhost:9", "http://***@localhost:9"),
        ("http://localhost:9/api?token=s3cret", "http://localhost:9/api"),
        ("http://localhost:9/api#s3cret", "http://localhost:9/api"),
        ("s3://u:s3cret/x@bucket/runs", "s3://***@bucket/runs"),
        ("user:s3cretpw@localhost:9", "***"),
        ("http://user:s3cret", "***"),
        ("http://u:s3cret@[::1", "***"),
        ("file:///data/runs", "file:///data/runs"),
    ],
)
def test_an_address_is_shown_without_what_may_be_a_password(address: str, shown: str) -> None:
    assert show_address(address) == shown


def test_of_a_text_nothing_before_the_last_at_sign_of_an_address_is_left() -> None:
    said = remove_users("no answer of 'http://u:s3/cret@h/x', see https://h.example/a and a@b")
    assert said == "no answer of 'http://***@h/x', see https://h.example/a and a@b"

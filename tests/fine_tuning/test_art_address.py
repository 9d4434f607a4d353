"""Where the ART trainer adapter finds its server: a host and a port, and TLS where it is said."""

import pytest
from pydantic import ValidationError

from nip_core.fine_tuning.art_adapter_config import ARTBackendConfig


@pytest.mark.parametrize(
    ("ip", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("gpu-box.example", "http://gpu-box.example:8000"),
        ("::1", "http://[::1]:8000"),
        ("[::1]", "http://[::1]:8000"),
        ("https://gpu-box.example", "https://gpu-box.example:8000"),
        ("https://gpu-box.example/", "https://gpu-box.example:8000"),
        ("http://10.0.0.7", "http://10.0.0.7:8000"),
        ("https://[::1]", "https://[::1]:8000"),
    ],
)
def test_a_host_with_or_without_its_scheme_is_the_address_that_is_asked(ip: str, url: str) -> None:
    assert ARTBackendConfig(ip=ip, port=8000).url == url


@pytest.mark.parametrize(
    "ip",
    [
        *(
            "",
            "  ",
            "gpu box",
            "gpu-box:8000",
            "https://gpu-box:8000",
            "[gpu-box]",
            "/",
            "https://",
            "https:",
        ),
        *("gpu-box/v1", "https://gpu-box/v1", "ftp://gpu-box", "http://https://gpu-box"),
        *("ada:sesame@gpu-box", "https://ada:sesame@gpu-box", "gpu-box?key=sesame"),
    ],
)
def test_what_is_more_than_a_host_is_refused_with_where_it_belongs_and_not_shown(ip: str) -> None:
    with pytest.raises(ValidationError, match=r"ip\n.*a host like .* `port`") as refused:
        ARTBackendConfig(ip=ip, port=8000)
    assert "sesame" not in str(refused.value)

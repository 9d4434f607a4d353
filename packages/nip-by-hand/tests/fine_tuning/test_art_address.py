"""Where the ART trainer adapter finds its server: a host and a port, and TLS where it is said."""

import pytest
from pydantic import ValidationError

from nip_by_hand.fine_tuning.art.art_adapter_config import ARTBackendConfig


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
        *("host\\x", "%00", "*", "host,host2", "host..x", "-host", "h" * 64, "host\n", "[::1%\n]"),
        *("ada:sesame@gpu-box", "https://ada:sesame@gpu-box", "gpu-box?key=sesame"),
    ],
)
def test_what_is_more_than_a_host_is_refused_with_where_it_belongs_and_not_shown(ip: str) -> None:
    with pytest.raises(ValidationError, match=r"ip\n.*a host like .* `port`") as refused:
        ARTBackendConfig(ip=ip, port=8000)
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize("port", [True, False, "8000", 8000.0, 0, 65536, None])
def test_a_port_is_a_number_and_nothing_that_looks_like_one(port: object) -> None:
    with pytest.raises(ValidationError, match="port"):
        ARTBackendConfig(ip="gpu-box", port=port)


@pytest.mark.parametrize("name", ["", " ", "a/b", "a/b\n", "a\n", "a\x1b[2J", "a\x00"])
def test_a_model_and_a_project_have_names_that_a_line_can_show(name: str) -> None:
    for field in ("name", "project"):
        with pytest.raises(ValidationError, match=f"{field}\n.*a name without slashes"):
            ARTBackendConfig(ip="gpu-box", port=8000, **{field: name})
    assert ARTBackendConfig(ip="gpu-box", port=8000, name="Ada's 2nd, v1.0").name

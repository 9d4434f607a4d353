"""judge.yaml: a user's judge, their graded rows, and how to attack it.

JudgeFile        its settings, checked; the place of each for errors
load_judge_file  a path -> JudgeFile

All that the file alone, and the small files that it names, can show is checked before anything is
asked: an error is one line with the line of the key. Rows are read by `rows`.
"""

import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import Field, PrivateAttr, ValidationError

from nip_base.formats.bounds import ReadError, parse_json
from nip_base.formats.untrusted import parse_yaml, read_text
from nip_core.errors import SettingsError
from nip_core.hashing import digest as digest_value
from nip_core.parameters import PureTextAgentParameters
from nip_judges.settings.file_checks import check_file
from nip_judges.settings.file_errors import describe_error
from nip_judges.settings.judge_settings import (
    CHECKS,
    BudgetSettings,
    DataSettings,
    JudgeSettings,
    ModelSettings,
    PriceSettings,
    Settings,
    SurfaceList,
)
from nip_judges.settings.named_texts import hash_file, hash_named, is_address, read_named_text
from nip_judges.settings.yaml_lines import Written, read_written

MOST_DATA_BYTES = 1 << 30
_MODEL_GRADERS = frozenset({"label_model", "score_model"})
ASKING = (
    "model_provider",
    "base_url",
    "api_dialect",
    "temperature",
    "top_p",
    "reasoning_effort",
    "served_as",
    "max_tokens_per_message",
)
_NOT_IN_DIGEST = {"attacker", "budget", "prices", "concurrency"}
"""They decide no answer: an attack that goes on may have others."""
_PLAIN_TEXT = {
    "judge": {"accept", "reject", "model_name", "fill"},
    "data": set(DataSettings.model_fields),
}
"""Settings that are text even where YAML reads `yes` or `1`."""


class JudgeFile(Settings):
    """A judge.yaml, read and checked."""

    judge: JudgeSettings
    data: DataSettings
    check: str | None = None
    """What decides whether a new text is right: exact, number, option, tests, or a function's
    address. None: nothing does, and no text is written freely."""
    labels_by: Literal["people", "program", "model"] | None = None
    no_verdict: Literal["reject", "accept", "drop"] = "reject"
    attacker: ModelSettings | None = None
    """A model that writes attacking texts, for --by."""
    attacker_sees: Literal["prompt", "nothing"] = "prompt"
    surface: SurfaceList | None = None
    budget: BudgetSettings = BudgetSettings()
    prices: PriceSettings = PriceSettings()
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 16
    timeout_s: Annotated[float, Field(gt=0)] = 120
    seed: Annotated[int, Field(ge=0)] = 0

    _path: Path = PrivateAttr(default=Path())
    _written: Written = PrivateAttr(default_factory=lambda: Written({}, {}))
    _digest: str = PrivateAttr(default="")

    @property
    def path(self) -> Path:
        """Return the path of the yaml, as it was given."""
        return self._path

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the settings and of the bytes of all files that they name.

        Budget, prices and concurrency are left out.
        """
        return self._digest

    def find(self, name: str) -> Path:
        """Return the path of a file that is named relative to the yaml."""
        return self._path.parent / Path(name).expanduser()

    def place(self, *keys: str | int) -> str:
        """Return "judge.yaml, line 4", the place of a key or of the block around it."""
        line = self._written.find_line(keys)
        return f"{self._path}, line {line}" if line else str(self._path)

    def refuse(self, keys: tuple[str | int, ...], message: str) -> NoReturn:
        """Raise SettingsError with the place of a key."""
        raise SettingsError(f"{self.place(*keys)}: {' '.join(message.split())}")

    def has(self, *keys: str) -> bool:
        """Return whether a key is set, in the file or by an override."""
        block: object = self
        for key in keys[:-1]:
            block = getattr(block, key)
        return isinstance(block, Settings) and keys[-1] in block.model_fields_set

    @cached_property
    def prompt_text(self) -> str | None:
        """Read the prompt as it is written; None for other judges. Raises SettingsError."""
        if self.judge.prompt is None:
            return None
        return self._read_text(("judge", "prompt"), self.judge.prompt)

    @cached_property
    def system_text(self) -> str | None:
        """Read the system prompt; None where there is none. Raises SettingsError."""
        if self.judge.system is None:
            return None
        return self._read_text(("judge", "system"), self.judge.system)

    @cached_property
    def grader_json(self) -> dict[str, Any] | None:
        """Read the grader's file; None for other judges. Raises SettingsError."""
        if self.judge.grader is None:
            return None
        name = self.judge.grader
        try:
            value = parse_json(self._read_text(("judge", "grader"), name))
        except ReadError as error:
            self.refuse(("judge", "grader"), f"{name} is not JSON ({error})")
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            self.refuse(("judge", "grader"), f"{name} is no grader: an object with a type is one")
        return value

    @cached_property
    def agent(self) -> PureTextAgentParameters | None:
        """Build the settings of the model that is asked; None where none is.

        Raises SettingsError for settings that do not go together.
        """
        if not self.asks_model:
            return None
        model_name = self.judge.model_name or str((self.grader_json or {}).get("model", ""))
        settings = {name: getattr(self.judge, name) for name in ASKING}
        try:
            return PureTextAgentParameters(
                model_name=model_name, freeze_agent=True, chat_format="alternating", **settings
            )
        except ValidationError as error:
            first = error.errors()[0]
            message = str(first.get("ctx", {}).get("error", first["msg"]))
            key = first["loc"][-1] if first["loc"] else "temperature"
            self.refuse(("judge", str(key)), f"judge: {message}")

    @property
    def asks_model(self) -> bool:
        """Return whether judging is a call of a model by its settings here."""
        grader = self.grader_json
        if grader is None:
            return self.judge.prompt is not None
        inner = grader.get("graders")
        kinds = [one.get("type") for one in inner.values()] if isinstance(inner, dict) else []
        return bool(_MODEL_GRADERS.intersection([grader["type"], *kinds]))

    def _read_text(self, keys: tuple[str, ...], name: str) -> str:
        try:
            return read_named_text(self._path.parent, name)
        except ValueError as error:
            self.refuse(keys, str(error))


def load_judge_file(path: str | Path, overrides: Iterable[str] = ()) -> JudgeFile:
    """Read a judge.yaml, with overrides like "budget.usd=2" on top, and check it.

    Raises SettingsError, one line, for whatever is wrong. Nothing is asked, and no code of the
    user's is run but that of a package in which a prompt stands.
    """
    path = Path(path)
    if path.is_dir():
        raise SettingsError(f"{path}: is a folder; name the file in it, such as judge.yaml")
    try:
        text = read_text(path)
        values = parse_yaml(text)
    except ReadError as error:
        raise SettingsError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        kind = "nothing" if values is None else type(values).__name__
        raise SettingsError(
            f"{path}: a mapping with the blocks judge and data is needed, got {kind}; "
            "nip init judge.yaml --from judge writes one"
        )
    marks = read_written(text)
    values = _keep_texts(values, marks)
    for override in overrides:
        _put(values, override)
    try:
        file = JudgeFile.model_validate(values)
    except ValidationError as error:
        raise SettingsError(describe_error(error, str(path), marks, JudgeFile)) from None
    file._path, file._written = path, marks
    check_file(file)
    file._digest = _compute_digest(file)
    return file


def _keep_texts(values: dict[Any, Any], marks: Written) -> dict[Any, Any]:
    """Put the text as it was written where YAML reads a truth value or a number."""
    blocks_as_text = dict(values)
    for block, names in _PLAIN_TEXT.items():
        inner = values.get(block)
        if not isinstance(inner, dict):
            continue
        blocks_as_text[block] = {
            name: _as_written(value, (block, str(name)), marks) if name in names else value
            for name, value in inner.items()
        }
    return {
        key: {} if value is None and key in ("budget", "prices") else value
        for key, value in blocks_as_text.items()
    }


def _as_written(value: Any, keys: tuple[str, ...], marks: Written) -> Any:
    if isinstance(value, dict):
        return {name: _as_written(one, (*keys, str(name)), marks) for name, one in value.items()}
    if isinstance(value, list):
        return [_as_written(one, (*keys, str(i)), marks) for i, one in enumerate(value)]
    return marks.texts.get(keys, str(value)) if isinstance(value, bool | int | float) else value


def _put(values: dict[Any, Any], override: str) -> None:
    """Put an override's value where its address says. Raises SettingsError."""
    address, equals, text = override.partition("=")
    *blocks, name = address.strip().split(".")
    if not equals or not name or len(blocks) > 1:
        raise SettingsError("--set: write it as block.key=value, such as budget.usd=2")
    try:
        value = parse_yaml(text)
    except ReadError as error:
        raise SettingsError(f"--set {address}: the value {error}") from None
    is_text = name in _PLAIN_TEXT.get("".join(blocks), set())
    if is_text and isinstance(value, bool | int | float):
        value = text.strip()
    inner = values
    for block in blocks:
        old = values.get(block)
        inner = values[block] = dict(old) if isinstance(old, dict) else {}
    inner[name] = value


def _compute_digest(file: JudgeFile) -> str:
    """Hash the settings, and the bytes of the files that they name."""
    settings = json.loads(file.model_dump_json(exclude=_NOT_IN_DIGEST))
    judge = file.judge
    names = {
        "prompt": judge.prompt,
        "system": judge.system,
        "function": judge.function,
        "grader": judge.grader,
        "check": None if file.check in CHECKS else file.check,
        **{f"fill.{name}": text for name, text in judge.fill.items() if is_address(text)},
    }
    hashes = {key: hash_named(file.path.parent, name) for key, name in names.items() if name}
    hashes["data"] = _hash_data(file)
    return digest_value({"settings": settings, "files": hashes})


def _hash_data(file: JudgeFile) -> str:
    """Hash the data's file, if it is one that is read. Raises SettingsError."""
    path = file.find(file.data.file)
    try:
        size = path.stat().st_size
        if size > MOST_DATA_BYTES:
            file.refuse(
                ("data", "file"),
                f"{file.data.file} has {size / 1e9:.1f} GB, at most "
                f"{MOST_DATA_BYTES / 1e9:.1f} GB are read; some thousand of its rows are plenty",
            )
        return hash_file(path)
    except OSError as error:
        file.refuse(("data", "file"), f"{file.data.file}: can't be read ({error.strerror})")

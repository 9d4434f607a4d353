"""An attack by a script: a function writes the provers' messages, and none of theirs is asked."""

from typing import ClassVar

from nip_core.attacks.base import Attack, AttackingRun, AttackTurn, NoOptions, PlayableMessage
from nip_core.scenarios import make_scenario
from nip_core.scenarios.scripts import check_script_named


class Script(Attack):
    """The messages that a function writes are played; see `nip_core.scenarios.scripts`."""

    name = "script"
    Options = NoOptions
    own_settings: ClassVar[tuple[str, ...]] = ("script",)
    command_options: ClassVar[tuple[str, ...]] = ("script",)
    takes_script = True
    samples = False

    @property
    def counts(self) -> tuple[int, ...]:
        """There is one message in each turn."""
        return (1,)

    @property
    def continuations(self) -> int:
        """None is judged."""
        return 0

    @property
    def script(self) -> str | None:
        """The function, as the settings name it."""
        return self.settings.script

    def check(self) -> None:
        """Refuse an attack without a script."""
        if self.settings.script is None:
            raise ValueError(
                "script is missing; by: script needs the name of one that comes with the scenario, "
                "or path/to/file.py:function"
            )

    def check_run(self, run: AttackingRun) -> None:
        """Refuse a name that no script of the scenario has."""
        check_script_named(make_scenario(run), self.settings.script)

    async def choose(self, turn: AttackTurn) -> PlayableMessage:
        """Play what is written; the players of the attackers are scripted."""
        [message] = await turn.ask(1)
        return message

    def describe(self) -> str:
        """Name the script."""
        return f"the script {self.settings.script}"

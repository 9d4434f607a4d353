"""`nip prompt`: the request that an agent gets."""

import shutil
from typing import TYPE_CHECKING, Annotated

import typer

from nip_cli.printing.options import (
    AsJson,
    ConfigOrNone,
    Overrides,
    RunStoreUrl,
    complete_run,
    say_left_out,
)
from nip_cli.printing.terminal import say
from nip_core.errors import SettingsError

if TYPE_CHECKING:
    from nip_core.showing.asked_chats import AskedChat


def prompt(
    config: ConfigOrNone = None,
    overrides: Overrides = None,
    run: Annotated[
        str | None,
        typer.Option(help="A run, in place of CONFIG.", autocompletion=complete_run),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Whose; default: who speaks first.")] = None,
    round_: Annotated[
        int | None, typer.Option("--round", min=0, help="From 0; default: the agent's first.")
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(metavar="ID|N", help="A problem, or the N-th episode; default: 0."),
    ] = None,
    iteration: Annotated[int, typer.Option(min=0, help="That plays the episode.")] = 0,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "train",
    run_store: RunStoreUrl = "runs",
    as_json: AsJson = False,
) -> None:
    """Show the chat that an agent is asked with, exactly as it is sent.

    Of CONFIG nothing is started, and the earlier messages of others stand there as
    <what prover says in round 1>. Of a run it is the request that was sent, with its answer.
    """
    from nip_core.showing.asked_chats import Place, render_chat_on_record, render_chat_to_come

    if (config is None) == (run is None):
        raise SettingsError("nip prompt: name a configuration, or a run by --run")
    place = Place(agent, round_, problem, iteration, split)
    if run is not None:
        from nip_core.records.named_run import find_run

        if overrides:
            raise SettingsError("--set: a run has the settings with which it was played")
        chat = render_chat_on_record(find_run(run, run_store, say_left_out), place)
    else:
        from nip_core.parameters import load_parameters

        chat = render_chat_to_come(load_parameters(str(config), overrides or []), place)
    if as_json:
        from nip_cli.printing.plans_and_runs import print_json

        print_json(chat.to_dict())
        return
    _print(chat)


def _print(chat: "AskedChat") -> None:
    from nip_core.game.native_calls import spell_out

    place = f"iteration {chat.iteration}, {chat.split}, problem {chat.problem}"
    say(f"{chat.agent} in round {chat.round} of {place}")
    request = ", ".join(f"{name} {value}" for name, value in (chat.request or {}).items())
    say(request or f"model {chat.model}")
    if chat.not_yet_said:
        say("what stands in <...> nobody has said yet")
    for message in chat.messages:
        name = f", {message['name']}" if message.get("name") else ""
        say(f"\n{_rule(message['role'] + name)}\n{spell_out(message)}")
    for answer in chat.answers:
        invalid = f" (invalid: {answer['invalid']})" if answer["invalid"] else ""
        say(f"\n{_rule('its answer' + invalid)}\n{answer['text']}")
        if answer["asked_again"] is not None:
            say(f"\n{_rule('asked again with the same and')}\n{answer['asked_again']}")


def _rule(title: str) -> str:
    width = min(shutil.get_terminal_size((80, 24)).columns, 80)
    return f"── {title} ".ljust(width, "─")

"""The game as a task of `inspect`: a solver in which two speakers take turns on one model.

With `--checkpoint` what was said is kept after each turn, and a retried game goes on from there.
"""

from game_texts import SYSTEM, TURNS, problem
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, ModelOutput, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, TaskState, solver
from inspect_ai.util import checkpointer


@solver
def turns(cache: bool):
    """A solver that plays one game."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        model = get_model()
        chats = {
            name: [ChatMessageSystem(content=text), ChatMessageUser(content=state.input_text)]
            for name, text in SYSTEM.items()
        }
        async with checkpointer() as session:
            answers: list[str] = []
            kept = session.track("answers", lambda: answers, [], value_type=list[str])
            for turn in range(TURNS):
                seats = ("verifier", "prover")
                speaker, listener = seats if turn % 2 == 0 else reversed(seats)
                if turn < len(kept):
                    output = ModelOutput.from_content("stub", kept[turn])
                else:
                    output = await model.generate(chats[speaker], cache=cache)
                chats[speaker].append(output.message)
                chats[listener].append(ChatMessageUser(content=output.completion))
                answers.append(output.completion)
                await session.tick()
        state.output, state.messages = output, chats["verifier"]
        return state

    return solve


@task
def nine_turns(games: int = 8, cache: bool = False) -> Task:
    """So many games."""
    samples = [
        Sample(id=number + 1, input=problem(number), target="accept") for number in range(games)
    ]
    return Task(dataset=samples, solver=turns(cache), scorer=includes())

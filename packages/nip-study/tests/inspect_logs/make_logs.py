"""The logs beside this file: small ones, written by inspect_ai 0.3.285, whose environment runs this.

python make_logs.py NAME...    writes the logs of these names, or all, into this directory
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from inspect_ai import Epochs, Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import write_eval_log
from inspect_ai.model import (
    ChatMessageSystem,
    ChatMessageUser,
    ContentImage,
    ContentText,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.scorer import Score, match, mean, scorer
from inspect_ai.solver import generate, solver

HERE = Path(__file__).parent


@solver
def fail_once():
    async def solve(state, generate):
        if state.epoch == 2 and state.sample_id == "q5":
            raise RuntimeError("this sample fails")
        return state

    return solve


@scorer(metrics=[mean()])
def grade():
    async def score(state, target):
        return Score(value=float("nan") if state.sample_id == "q1" else 1.0)

    return score


@scorer(metrics={"whole": [mean()]})
def grade_by_part():
    async def score(state, target):
        return Score(value={"whole": float("nan") if state.sample_id == "q1" else 1.0})

    return score


def answer(text):
    output = ModelOutput.from_content("mockllm/model", text)
    output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return output


def ask_sum(k):
    text = f"{k} + 1 = ?"
    return Sample(id=f"q{k}", input=text, target=str(k + 1), metadata={"topic": f"t{k // 2}"})


def ask_in_chat(k):
    """Ask in messages, one of which has a picture; Inspect gives each an id at random."""
    picture = ContentImage(image="data:image/png;base64,iVBORw0KGgo=")
    question = [ContentText(text=f"{k} + 1 = ?"), picture] if k == 0 else f"{k} + 1 = ?"
    chat = [ChatMessageSystem(content="Answer."), ChatMessageUser(content=question)]
    return Sample(id=f"q{k}", input=chat, target=str(k + 1))


def ask_about_passage(k, end=""):
    """Ask so that a summary of Inspect cuts what tells passages, and the first texts, apart."""
    passage = "A line of a passage,\n\nand another. " * 30 + "ab"[k // 2]
    text = ("word " * 1100 if k == 0 else "") + f"{k} + 1 = ?{end}"
    metadata = {"passage": passage, "source": {"passage": passage}, "topic": f"of\n{k // 2}"}
    return Sample(id=f"q{k}", input=text, target=str(k + 1), metadata=metadata)


def write(name, answers, epochs=1, ask=ask_sum, scorers=(match(),)):
    task = Task(
        MemoryDataset([ask(k) for k in range(len(answers) // epochs)], name="sums"),
        solver=[fail_once(), generate()],
        scorer=list(scorers),
        name="sums",
        epochs=Epochs(epochs),
        fail_on_error=False,
    )
    model = get_model(
        f"mockllm/{name.partition('.')[0]}", custom_outputs=[answer(text) for text in answers]
    )
    with TemporaryDirectory() as folder:
        [log] = eval(task, model=model, log_dir=folder, max_samples=1, display="none")
        for sample in log.samples:  # read from the folder, where they are asked for
            sample.events, sample.events_data, sample.error_retries = [], None, []
            texts = sample.attachments.items()  # those of events, and pictures of the input
            sample.attachments = {key: text for key, text in texts if text.startswith("data:")}
            if sample.error is not None:
                sample.error.traceback = sample.error.traceback_ansi = ""
        log.eval.revision, log.eval.task_file = None, None
        write_eval_log(log, str(HERE / name))


LOGS = {
    "right.eval": (["1", "2", "9", "4", "9", "6"],),
    "better.eval": (["1", "2", "3", "4", "5", "9"],),
    # The last sample has no second answer, as it fails.
    "epochs.json": (["1", "2", "3", "4", "9", "6", "1", "2", "3", "4", "9", "9"], 2),
    "chat.eval": (["1", "2", "9"], 1, ask_in_chat),
    "chat_again.json": (["1", "2", "3"], 1, ask_in_chat),
    "long.eval": (["1", "2", "9", "9"], 1, ask_about_passage),
    "long_again.json": (["1", "2", "3", "9"], 1, ask_about_passage),
    "long_other.eval": (["1", "2", "3", "9"], 1, lambda k: ask_about_passage(k, " Why?")),
    # The second sample is left without a score.
    "unscored.eval": (["1", "2", "3"], 1, ask_sum, (grade(), grade_by_part())),
    "unscored.json": (["1", "2", "3"], 1, ask_sum, (grade(), grade_by_part())),
}

if __name__ == "__main__":
    for name in sys.argv[1:] or LOGS:
        write(name, *LOGS[name])

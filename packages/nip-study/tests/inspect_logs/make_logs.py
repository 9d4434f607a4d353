"""The logs beside this file: small ones, written by inspect_ai 0.3.285, whose environment runs this.

python make_logs.py    writes right.eval, better.eval and epochs.json into this directory
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from inspect_ai import Epochs, Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import write_eval_log
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import match
from inspect_ai.solver import generate, solver

HERE = Path(__file__).parent


@solver
def fail_once():
    async def solve(state, generate):
        if state.epoch == 2 and state.sample_id == "q5":
            raise RuntimeError("this sample fails")
        return state

    return solve


def answer(text):
    output = ModelOutput.from_content("mockllm/model", text)
    output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return output


def write(name, answers, epochs=1):
    samples = [
        Sample(
            id=f"q{k}", input=f"{k} + 1 = ?", target=str(k + 1), metadata={"topic": f"t{k // 2}"}
        )
        for k in range(6)
    ]
    task = Task(
        MemoryDataset(samples, name="sums"),
        solver=[fail_once(), generate()],
        scorer=match(),
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
            if sample.error is not None:
                sample.error.traceback = sample.error.traceback_ansi = ""
        log.eval.revision, log.eval.task_file = None, None
        write_eval_log(log, str(HERE / name))


if __name__ == "__main__":
    write("right.eval", ["1", "2", "9", "4", "9", "6"])
    write("better.eval", ["1", "2", "3", "4", "5", "9"])
    write("epochs.json", ["1", "2", "3", "4", "9", "6", "1", "2", "3", "4", "9"], epochs=2)

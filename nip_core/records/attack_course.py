"""How an attack by training has ended: ``course.json`` of its last iteration.

course_path     where it is
read_course     the document, of one iteration
read_moved      how far training has moved the provers of a step
find_moved      the same of models, by the proofs of their weights
find_early_end  the iteration with which a verdict ended an attack before its most steps
"""

from collections.abc import Iterable

from nip_core.attack_figures.metrics_document import CourseEnd
from nip_core.parameters import HyperParameters
from nip_core.records.models import ServedModel, read_models
from nip_core.run_store.run import RunStore, read_document


def course_path(run: RunStore, iteration: int) -> str:
    """Return where the document of an iteration is, whether it is there or not."""
    return f"{run.iteration(iteration)}/course.json"


def read_course(run: RunStore, iteration: int) -> CourseEnd | None:
    """Read the end of an attack's course; None unless it ended with this iteration."""
    return read_document(run, course_path(run, iteration), CourseEnd)


def read_moved(run: RunStore, parameters: HyperParameters, step: int) -> float | None:
    """Read the distance of a step's provers from their start, by training.

    None where that is not known, and after an imitation, which moves them before any training.
    """
    if step == 0 or parameters.imitates(0):
        return None
    models = read_models(run, step)
    return find_moved(models[group] for group in parameters.trainable_groups)


def find_moved(provers: Iterable[ServedModel]) -> float | None:
    """Find how far provers are from their base model, as which an attack begins; of the farthest.

    By the proof of their weights, which compares both on tokens that they were trained on. None
    where a trained one's proof does not have it, as of another server than our own, and where no
    prover was trained.
    """
    details = [
        (model.proof or {}).get("detail") or {} for model in provers if model.trained_in is not None
    ]
    distances = [float(d["base_distance_mean"]) for d in details if "base_distance_mean" in d]
    return max(distances) if distances and len(distances) == len(details) else None


def find_early_end(run: RunStore) -> int | None:
    """Find the last iteration of a course with an early end; None without one."""
    names = run.store.list(f"{run.root}/iterations")
    numbers = sorted(int(name[:-1]) for name in names if name[:-1].isdigit())
    # Results after the last test would be in a later iteration, and a rewind leaves directories.
    for number in reversed(numbers):
        if (end := read_course(run, number)) is not None:
            return number if end.is_early else None
        if run.store.list(run.iteration(number)):
            return None
    return None

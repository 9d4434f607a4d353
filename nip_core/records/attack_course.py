"""How an attack by training has ended: ``course.json`` of its last iteration.

course_path     where it is
read_course     the document, of one iteration
find_moved      how far training has moved provers, by the proofs of their weights
find_early_end  the iteration with which a verdict ended an attack before its most steps
"""

from collections.abc import Iterable

from nip_core.evaluation.attack_metrics import CourseEnd
from nip_core.records.models import ServedModel
from nip_core.run_store.run import RunStore, read_document


def course_path(run: RunStore, iteration: int) -> str:
    """Return where the document of an iteration is, whether it is there or not."""
    return f"{run.iteration(iteration)}/course.json"


def read_course(run: RunStore, iteration: int) -> CourseEnd | None:
    """Read how the course ended with an iteration; None while it has not."""
    return read_document(run, course_path(run, iteration), CourseEnd)


def find_moved(provers: Iterable[ServedModel]) -> float | None:
    """Find how far provers are from their base model, as which an attack begins; of the farthest.

    By the proof of their weights, which compares both on tokens that they were trained on. None
    where a trained one's proof does not have it, as of another server than our own, and where no
    prover was trained.
    """
    details = [(of.proof or {}).get("detail") or {} for of in provers if of.trained_in is not None]
    distances = [detail.get("base_distance_mean") for detail in details]
    if not distances or None in distances:
        return None
    return max(map(float, distances))


def find_early_end(run: RunStore) -> int | None:
    """Find the iteration with which the course ended early; None where it has not."""
    names = run.store.list(f"{run.root}/iterations")
    numbers = sorted(int(name[:-1]) for name in names if name[:-1].isdigit())
    # Whatever follows the last test would be in a later iteration, and a rewind leaves directories.
    for number in reversed(numbers):
        if (end := read_course(run, number)) is not None:
            return number if end.is_early else None
        if run.store.list(run.iteration(number)):
            return None
    return None

"""How an attack by training has ended: ``course.json`` of its last iteration.

course_path     where it is
read_course     the document, of one iteration
find_early_end  the iteration with which a verdict ended an attack before its most steps
"""

from nip_core.evaluation.attack_metrics import CourseEnd
from nip_core.run_store.run import RunStore, read_document


def course_path(run: RunStore, iteration: int) -> str:
    """Return where the document of an iteration is, whether it is there or not."""
    return f"{run.iteration(iteration)}/course.json"


def read_course(run: RunStore, iteration: int) -> CourseEnd | None:
    """Read how the course ended with an iteration; None while it has not."""
    return read_document(run, course_path(run, iteration), CourseEnd)


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

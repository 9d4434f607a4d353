"""Which iterations of a run are tested, by its settings alone."""

from nip_core.parameters import HyperParameters


def is_tested(parameters: HyperParameters, iteration: int) -> bool:
    """Say whether the models of `iteration` are tested (the final ones: num_iterations)."""
    text_rl, last = parameters.text_rl, parameters.rl.num_iterations
    has_imitated = parameters.imitates(0)
    return scheme_tests(
        text_rl.test_scheme, last, iteration, text_rl.test_interval, has_imitated=has_imitated
    )


def scheme_tests(
    scheme: str, last: int, iteration: int, interval: int, *, has_imitated: bool = False
) -> bool:
    """`is_tested` by the test scheme, the number of iterations and the test interval.

    Where the first iteration `has_imitated`, the interval is counted from its models.
    """
    match scheme:
        case "all":
            count = max(0, iteration - has_imitated)
            return count % interval == 0 or iteration == last
        case "last":
            return iteration == last
        case "first_and_last":
            return iteration in (0, last)
    return False

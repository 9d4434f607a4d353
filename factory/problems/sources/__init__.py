"""The sources of the bundled set `problems`: questions, solutions and tests, one file a topic.

`build_problems` makes the data set of them. To add a problem, add it to the file of its topic and
run the build again.
"""

from factory.problems.sources import (
    dates,
    dynamic,
    grids,
    intervals,
    lists,
    mappings,
    maths,
    number_theory,
    parsing,
    recursion,
    simulations,
    sorting_greedy,
    stacks,
    strings,
    text_formatting,
)
from factory.problems.sources.source import Source

SOURCES: tuple[Source, ...] = (
    *dates.PROBLEMS,
    *dynamic.PROBLEMS,
    *grids.PROBLEMS,
    *intervals.PROBLEMS,
    *lists.PROBLEMS,
    *mappings.PROBLEMS,
    *maths.PROBLEMS,
    *number_theory.PROBLEMS,
    *parsing.PROBLEMS,
    *recursion.PROBLEMS,
    *simulations.PROBLEMS,
    *sorting_greedy.PROBLEMS,
    *stacks.PROBLEMS,
    *strings.PROBLEMS,
    *text_formatting.PROBLEMS,
)

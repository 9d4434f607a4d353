"""The `families` problem set: thousands of very small functions for tiny models.

structure.py   what a family is: slots, members, how a member reads in words and in code
catalogue.py   the families themselves
behaviour.py   runs a function on the test inputs of its family
selection.py   members to splits, questions to rows, bugs; from here come rows and labels

`factory.problems.build_families` writes the rows to Parquet. Whoever only
wants to play loads those files and needs nothing from here.
"""

from factory.problems.families.behaviour import behaviour
from factory.problems.families.catalogue import FAMILIES
from factory.problems.families.selection import Row, Selection, select
from factory.problems.families.structure import Family, Member, Option, Slot

__all__ = [
    "FAMILIES",
    "Family",
    "Member",
    "Option",
    "Row",
    "Selection",
    "Slot",
    "behaviour",
    "select",
]

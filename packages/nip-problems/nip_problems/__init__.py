"""Problems of your own: solutions, bugs made from them, and the tests that tell them apart.

    mutants           single-change variants of a solution, which its tests may prove wrong
    rewrites          the same solution written differently, so that correct ones vary in style too
    normalise         a solution without comments and formatting of its own, as the two write it
    run_tests         a solution and its tests in the sandbox: which pass
    run_tests_batch   thousands of such suites
    run_python        a program in the sandbox: its output and how it ended
    run_python_batch  several, quickly
    examine           the means that keep code in on this system

    Mutant, Rewrite, Suite, Limits, TestReport, SandboxResult, Isolation   arguments, results
    SandboxError      this system can't keep the code in

A label is as good as the tests: take a mutant for buggy only if a test fails, and a rewrite
for correct only if all pass. `sandbox` lists the dangers that the sandbox keeps off, docs/guide.md
has a way through all of it; the shipped problems are made so by `factory.problems.build`, datasets
of problems with tests by `nip problems build`, of which `from_tests` is the part without models.
"""

from nip_problems.mutation.mutate import Mutant, mutants
from nip_problems.mutation.rewrite import Rewrite, rewrites
from nip_problems.mutation.syntax import normalise
from nip_sandbox.sandbox import (
    Isolation,
    Limits,
    Program,
    SandboxError,
    SandboxResult,
    Suite,
    TestReport,
    examine,
    run_python,
    run_python_batch,
    run_tests,
    run_tests_batch,
)

__all__ = [
    "Isolation",
    "Limits",
    "Mutant",
    "Program",
    "Rewrite",
    "SandboxError",
    "SandboxResult",
    "Suite",
    "TestReport",
    "examine",
    "mutants",
    "normalise",
    "rewrites",
    "run_python",
    "run_python_batch",
    "run_tests",
    "run_tests_batch",
]

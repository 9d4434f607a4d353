"""A handful of problems with tests, in the forms of HumanEval, MBPP, APPS and Python files."""

import json
from pathlib import Path

PROBLEMS = (
    (
        "largest",
        'def largest(numbers):\n    """Return the largest of some numbers, None if there are none."""\n',
        "    best = None\n    for n in numbers:\n        if best is None or n > best:\n"
        "            best = n\n    return best\n",
        ("f([1, 3, 2]) == 3", "f([]) is None", "f([-5, -2]) == -2", "f([7]) == 7"),
    ),
    (
        "count_even",
        'def count_even(numbers):\n    """Count the even numbers."""\n',
        "    count = 0\n    for n in numbers:\n        if n % 2 == 0:\n            count += 1\n"
        "    return count\n",
        ("f([1, 2, 4]) == 2", "f([]) == 0", "f([1, 3]) == 0", "f([0]) == 1"),
    ),
    (
        "clamp",
        'def clamp(x, low, high):\n    """Return x, but at least low and at most high."""\n',
        "    if x < low:\n        return low\n    if x > high:\n        return high\n    return x\n",
        ("f(5, 0, 3) == 3", "f(-5, 0, 3) == 0", "f(2, 0, 3) == 2", "f(3, 0, 3) == 3"),
    ),
    (
        "initials",
        'def initials(name):\n    """Return the first letters of the words of a name."""\n',
        '    return "".join(word[0] for word in name.split())\n',
        ('f("ada lovelace") == "al"', 'f("") == ""', 'f("x") == "x"'),
    ),
    (
        "running",
        'def running(numbers):\n    """Return the sums of the first 1, 2, ... numbers."""\n',
        "    total = 0\n    sums = []\n    for n in numbers:\n        total += n\n"
        "        sums.append(total)\n    return sums\n",
        ("f([1, 2, 3]) == [1, 3, 6]", "f([]) == []", "f([4]) == [4]"),
    ),
)


def human_eval_rows() -> list[dict[str, str]]:
    """The problems as HumanEval has them."""
    rows = []
    for name, prompt, body, checks in PROBLEMS:
        lines = [f"    assert {check.replace('f(', 'candidate(')}" for check in checks]
        rows.append(
            {
                "task_id": f"Small/{name}",
                "prompt": prompt,
                "canonical_solution": body,
                "test": "\n".join(["def check(candidate):", *lines, "    assert True, 'hint'", ""]),
                "entry_point": name,
            }
        )
    return rows


def mbpp_rows() -> list[dict[str, object]]:
    """The problems as MBPP has them."""
    return [
        {
            "task_id": number,
            "text": f"Write a function {name} ({prompt.split(chr(34) * 3)[1]})",
            "code": prompt + body,
            "test_list": [f"assert {check.replace('f(', f'{name}(')}" for check in checks],
            "test_setup_code": "",
        }
        for number, (name, prompt, body, checks) in enumerate(PROBLEMS, start=11)
    ]


def apps_rows() -> list[dict[str, object]]:
    """Programs, and one function, as APPS has them."""
    largest = "n = int(input())\nnumbers = list(map(int, input().split()))\nprint(max(numbers))\n"
    total = "import sys\nprint(sum(int(word) for word in sys.stdin.buffer.read().split()))\n"
    half = "x = float(input())\nif x > 10:\n    print(x / 4)\nelse:\n    print(x / 2)\n"
    method = "class Solution:\n    def twice(self, n: int) -> int:\n        return n * 2\n"
    cases = [
        ("Print the largest.", [largest], ["3\n1 5 2\n", "1\n-4\n"], ["5\n", "-4\n"], None),
        ("Print the sum.", [total, "print 1"], ["1 2 3", "", "5"], ["6", "0", "5\n"], None),
        ("Halve it, quarter it above 10.", [half], ["3", "20"], ["1.5000000", "5.0"], None),
        ("Return twice n.", [method], [[2], [5]], [4, [10]], "twice"),
    ]
    return [
        {
            "problem_id": number,
            "question": question,
            "solutions": json.dumps(solutions),
            "input_output": json.dumps(
                {"inputs": given, "outputs": right, **({"fn_name": name} if name else {})}
            ),
            "difficulty": "introductory",
        }
        for number, (question, solutions, given, right, name) in enumerate(cases)
    ]


def write_rows(path: Path, rows: list) -> Path:
    """The rows as lines of JSON."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_files(folder: Path, count: int = len(PROBLEMS)) -> Path:
    """The first problems as Python files: tests beside them, in the same file, and as a TestCase."""
    folder.mkdir()
    for number, (name, prompt, body, checks) in enumerate(PROBLEMS[:count]):
        calls = [check.replace("f(", f"{name}(") for check in checks]
        functions = [f"def test_{k}():\n    assert {call}\n" for k, call in enumerate(calls)]
        imported = f"from {name} import {name}\n\n"
        if number == 0:
            (folder / f"{name}.py").write_text(prompt + body + "\n\n" + "\n\n".join(functions))
            continue
        (folder / f"{name}.py").write_text(prompt + body)
        if number == 1:
            methods = [
                f"    def test_{k}(self):\n        self.assertTrue({call})"
                for k, call in enumerate(calls)
            ]
            text = (
                "import unittest\n"
                + imported
                + "class Cases(unittest.TestCase):\n"
                + "\n\n".join(methods)
            )
            (folder / "tests").mkdir()
            (folder / "tests" / f"test_{name}.py").write_text(text + "\n")
        else:
            (folder / f"test_{name}.py").write_text(imported + "\n\n".join(functions))
    return folder

"""Problems that call for recursion: trees, nested lists, combinations."""

from factory.problems.sources.source import problem

PROBLEMS = (
    problem(
        "weighted-nested-sum",
        "introductory",
        """Write `weighted_sum(items)` for a list of numbers and, nested to any depth, further such
        lists. A number counts once for every list it stands in: in [1, [2, [3]]] the 1 counts once,
        the 2 twice, the 3 three times. Return the sum.""",
        """
        weighted_sum([]) == 0
        weighted_sum([5]) == 5
        weighted_sum([[5]]) == 10
        weighted_sum([1, [2, [3]]]) == 14
        weighted_sum([[], [[]]]) == 0
        weighted_sum([1, 2, [3]]) == 9
        weighted_sum([[1, 1], [1, 1]]) == 8
        weighted_sum([-1, [1]]) == 1
        weighted_sum([[[[1]]]]) == 4
        """,
        """
def weighted_sum(items):
    def add(inner, depth):
        total = 0
        for item in inner:
            if isinstance(item, list):
                total += add(item, depth + 1)
            else:
                total += depth * item
        return total
    return add(items, 1)
""",
    ),
    problem(
        "widest-level",
        "introductory",
        """A binary tree is None (empty) or a tuple (value, left tree, right tree). Write
        `widest(tree)` that returns the largest number of nodes on one level, 0 for the empty
        tree.""",
        """
        widest(None) == 0
        widest((1, None, None)) == 1
        widest((1, (2, None, None), (3, None, None))) == 2
        widest((1, (2, None, None), None)) == 1
        widest((1, (2, (3, None, None), (4, None, None)), (5, (6, None, None), None))) == 3
        widest((1, None, (2, None, (3, None, None)))) == 1
        widest((1, (2, (4, None, None), None), (3, None, (5, None, None)))) == 2
        widest((1, (2, (3, (4, None, None), None), None), (5, None, None))) == 2
        """,
        """
def widest(tree):
    level = [tree] if tree is not None else []
    most = 0
    while level:
        most = max(most, len(level))
        below = []
        for node in level:
            for child in node[1:]:
                if child is not None:
                    below.append(child)
        level = below
    return most
""",
    ),
    problem(
        "path-sums",
        "interview",
        """A binary tree is None (empty) or a tuple (value, left tree, right tree). Write
        `has_path(tree, total)` that tells whether there is a path from the root down to a leaf (a
        node without children) whose values add up to `total`. The empty tree has no path.""",
        """
        has_path(None, 0) is False
        has_path((5, None, None), 5) is True
        has_path((5, None, None), 4) is False
        has_path((1, (2, None, None), (3, None, None)), 3) is True
        has_path((1, (2, None, None), (3, None, None)), 4) is True
        has_path((1, (2, None, None), None), 1) is False
        has_path((1, (2, None, None), (3, None, None)), 5) is False
        has_path((1, None, (-1, None, None)), 0) is True
        has_path((4, (3, (2, None, None), None), None), 9) is True
        has_path((4, (3, (2, None, None), None), None), 7) is False
        """,
        """
def has_path(tree, total):
    if tree is None:
        return False
    value, left, right = tree
    if left is None and right is None:
        return value == total
    return has_path(left, total - value) or has_path(right, total - value)
""",
    ),
    problem(
        "subsets-with-sum",
        "interview",
        """Write `count_subsets(numbers, total)` that returns how many ways there are to choose some
        of the numbers (by position; possibly none) so that their sum is `total`. The sum of no
        numbers is 0.""",
        """
        count_subsets([], 0) == 1
        count_subsets([], 1) == 0
        count_subsets([3], 3) == 1
        count_subsets([3], 0) == 1
        count_subsets([1, 2, 3], 3) == 2
        count_subsets([1, 1, 1], 2) == 3
        count_subsets([0, 0], 0) == 4
        count_subsets([1, -1], 0) == 2
        count_subsets([2, 4, 6], 5) == 0
        """,
        """
def count_subsets(numbers, total):
    if not numbers:
        return 1 if total == 0 else 0
    without = count_subsets(numbers[1:], total)
    return without + count_subsets(numbers[1:], total - numbers[0])
""",
    ),
    problem(
        "hanoi-moves",
        "introductory",
        """Write `hanoi(discs, source, target, spare)` that returns the list of moves (from, to)
        that brings a tower of `discs` discs from the peg `source` to the peg `target`, one disc at
        a time, with a larger disc never on a smaller one, in as few moves as possible. No discs
        need no move.""",
        """
        hanoi(0, "A", "C", "B") == []
        hanoi(1, "A", "C", "B") == [("A", "C")]
        hanoi(2, "A", "C", "B") == [("A", "B"), ("A", "C"), ("B", "C")]
        len(hanoi(3, "A", "C", "B")) == 7
        hanoi(3, "A", "C", "B")[0] == ("A", "C")
        hanoi(3, "A", "C", "B")[3] == ("A", "C")
        len(hanoi(5, 1, 2, 3)) == 31
        hanoi(2, 1, 2, 3) == [(1, 3), (1, 2), (3, 2)]
        hanoi(3, "A", "C", "B")[-1] == ("A", "C")
        """,
        """
def hanoi(discs, source, target, spare):
    if discs == 0:
        return []
    before = hanoi(discs - 1, source, spare, target)
    after = hanoi(discs - 1, spare, target, source)
    return before + [(source, target)] + after
""",
    ),
    problem(
        "letter-cases",
        "interview",
        """Write `all_cases(text)` that returns all strings that arise from `text` by writing each
        letter in lower or upper case, in this order: for the first letter lower case before upper
        case, then likewise for the next. Characters that are not letters stay.""",
        """
        all_cases("") == [""]
        all_cases("a") == ["a", "A"]
        all_cases("1") == ["1"]
        all_cases("ab") == ["ab", "aB", "Ab", "AB"]
        all_cases("a1") == ["a1", "A1"]
        all_cases("1a") == ["1a", "1A"]
        all_cases("AB") == ["ab", "aB", "Ab", "AB"]
        len(all_cases("abc!")) == 8
        all_cases("a-b")[2] == "A-b"
        """,
        """
def all_cases(text):
    if not text:
        return [""]
    first = text[0]
    rest = all_cases(text[1:])
    if not first.isalpha():
        return [first + ending for ending in rest]
    lower = [first.lower() + ending for ending in rest]
    upper = [first.upper() + ending for ending in rest]
    return lower + upper
""",
    ),
    problem(
        "bracket-strings",
        "interview",
        """Write `bracketings(pairs)` that returns, sorted, all strings of `pairs` opening and as
        many closing round brackets in which every bracket is properly closed. For 0 the list holds
        the empty string.""",
        """
        bracketings(0) == [""]
        bracketings(1) == ["()"]
        bracketings(2) == ["(())", "()()"]
        bracketings(3) == ["((()))", "(()())", "(())()", "()(())", "()()()"]
        len(bracketings(4)) == 14
        bracketings(4)[0] == "(((())))"
        bracketings(4)[-1] == "()()()()"
        len(bracketings(5)) == 42
        """,
        """
def bracketings(pairs):
    found = []
    def extend(text, opened, closed):
        if closed == pairs:
            found.append(text)
            return
        if opened < pairs:
            extend(text + "(", opened + 1, closed)
        if closed < opened:
            extend(text + ")", opened, closed + 1)
    extend("", 0, 0)
    return found
""",
    ),
    problem(
        "list-nesting",
        "introductory",
        """Write `max_depth(items)` for a list that may contain further lists, nested to any depth.
        Return how many lists stand inside one another at most: [] has 1, [[]] has 2, [1, [2],
        [[3]]] has 3.""",
        """
        max_depth([]) == 1
        max_depth([1, 2]) == 1
        max_depth([[]]) == 2
        max_depth([1, [2], [[3]]]) == 3
        max_depth([[[3]], 1]) == 3
        max_depth([[1], [2]]) == 2
        max_depth([[[[]]]]) == 4
        max_depth([[[]], [[[]]], []]) == 4
        """,
        """
def max_depth(items):
    deepest = 0
    for item in items:
        if isinstance(item, list):
            deepest = max(deepest, max_depth(item))
    return deepest + 1
""",
    ),
    problem(
        "staircase-ways",
        "introductory",
        """Write `ways(stairs, steps)` that returns in how many ways one can climb a staircase of
        `stairs` stairs (at least 0) with steps of the sizes in the list `steps` (different numbers
        of at least 1). The order of steps matters. There is one way to climb no stairs.""",
        """
        ways(0, [1, 2]) == 1
        ways(1, [1, 2]) == 1
        ways(2, [1, 2]) == 2
        ways(4, [1, 2]) == 5
        ways(3, [2]) == 0
        ways(4, [2]) == 1
        ways(3, []) == 0
        ways(5, [1, 3, 5]) == 5
        ways(4, [1, 3]) == 3
        ways(3, [4, 5]) == 0
        """,
        """
def ways(stairs, steps):
    if stairs == 0:
        return 1
    total = 0
    for step in steps:
        if step <= stairs:
            total += ways(stairs - step, steps)
    return total
""",
        """
def ways(stairs, steps):
    counts = [1] + [0] * stairs
    for height in range(1, stairs + 1):
        for step in steps:
            if step <= height:
                counts[height] += counts[height - step]
    return counts[stairs]
""",
    ),
)

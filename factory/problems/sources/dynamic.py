"""Problems with overlapping parts: best sums, sequences, counting ways, distances."""

from factory.problems.sources.source import problem

PROBLEMS = (
    problem(
        "largest-stretch-sum",
        "interview",
        """Write `best_stretch(numbers)` that returns the largest sum of a stretch of neighbouring
        numbers with at least one number in it, or None for an empty list.""",
        """
        best_stretch([]) is None
        best_stretch([5]) == 5
        best_stretch([-5]) == -5
        best_stretch([1, 2, 3]) == 6
        best_stretch([1, -5, 4]) == 4
        best_stretch([4, -1, 2]) == 5
        best_stretch([-3, -1, -2]) == -1
        best_stretch([2, -3, 4, -1, 2, -5, 3]) == 5
        best_stretch([0, -1]) == 0
        """,
        """
def best_stretch(numbers):
    best = None
    current = 0
    for number in numbers:
        current = max(current + number, number)
        if best is None or current > best:
            best = current
    return best
""",
        """
def best_stretch(numbers):
    best = None
    for i in range(len(numbers)):
        total = 0
        for j in range(i, len(numbers)):
            total += numbers[j]
            if best is None or total > best:
                best = total
    return best
""",
    ),
    problem(
        "fewest-coins",
        "interview",
        """Write `fewest_coins(coins, amount)` that returns the smallest number of coins with the
        given values (each may be used any number of times) that add up to `amount`, or -1 if that
        can't be done. An amount of 0 needs no coins. All values are at least 1.""",
        """
        fewest_coins([1, 5], 0) == 0
        fewest_coins([1, 5], 7) == 3
        fewest_coins([1, 3, 4], 6) == 2
        fewest_coins([2], 3) == -1
        fewest_coins([], 5) == -1
        fewest_coins([], 0) == 0
        fewest_coins([5], 5) == 1
        fewest_coins([2, 5], 11) == 4
        fewest_coins([7, 3], 5) == -1
        fewest_coins([1, 10, 25], 30) == 3
        """,
        """
def fewest_coins(coins, amount):
    fewest = [0] + [None] * amount
    for total in range(1, amount + 1):
        for coin in coins:
            if coin <= total and fewest[total - coin] is not None:
                count = fewest[total - coin] + 1
                if fewest[total] is None or count < fewest[total]:
                    fewest[total] = count
    if fewest[amount] is None:
        return -1
    return fewest[amount]
""",
    ),
    problem(
        "longest-rising-subsequence",
        "interview",
        """Write `longest_climb(numbers)` that returns the length of the longest sequence of
        strictly rising numbers that one gets by leaving out any numbers of the list.""",
        """
        longest_climb([]) == 0
        longest_climb([7]) == 1
        longest_climb([1, 2, 3]) == 3
        longest_climb([3, 2, 1]) == 1
        longest_climb([2, 2]) == 1
        longest_climb([1, 9, 2, 3]) == 3
        longest_climb([10, 9, 2, 5, 3, 7, 101, 18]) == 4
        longest_climb([0, 4, 1, 5, 2]) == 3
        longest_climb([5, 6, 1]) == 2
        longest_climb([1, 2, 0]) == 2
        """,
        """
def longest_climb(numbers):
    lengths = []
    for i in range(len(numbers)):
        best = 1
        for j in range(i):
            if numbers[j] < numbers[i]:
                best = max(best, lengths[j] + 1)
        lengths.append(best)
    return max(lengths, default=0)
""",
    ),
    problem(
        "edit-steps",
        "interview",
        """Write `edit_steps(first, second)` that returns the smallest number of steps that turn the
        string `first` into `second`. A step inserts one character, removes one, or replaces one by
        another.""",
        """
        edit_steps("", "") == 0
        edit_steps("abc", "") == 3
        edit_steps("", "ab") == 2
        edit_steps("abc", "abc") == 0
        edit_steps("abc", "abd") == 1
        edit_steps("abc", "bc") == 1
        edit_steps("kitten", "sitting") == 3
        edit_steps("ab", "ba") == 2
        edit_steps("flaw", "lawn") == 2
        edit_steps("a", "bcd") == 3
        """,
        """
def edit_steps(first, second):
    previous = list(range(len(second) + 1))
    for i in range(1, len(first) + 1):
        current = [i]
        for j in range(1, len(second) + 1):
            if first[i - 1] == second[j - 1]:
                current.append(previous[j - 1])
            else:
                best = min(previous[j - 1], previous[j], current[j - 1])
                current.append(best + 1)
        previous = current
    return previous[-1]
""",
    ),
    problem(
        "robber-houses",
        "interview",
        """Write `best_haul(values)` that returns the largest sum of values one can choose from a
        list so that no two chosen ones are neighbours. Values are at least 0; choosing none gives
        0.""",
        """
        best_haul([]) == 0
        best_haul([5]) == 5
        best_haul([1, 2]) == 2
        best_haul([2, 1]) == 2
        best_haul([1, 2, 3]) == 4
        best_haul([2, 7, 9, 3, 1]) == 12
        best_haul([5, 1, 1, 5]) == 10
        best_haul([0, 0]) == 0
        best_haul([3, 10, 3, 1, 2]) == 12
        best_haul([1, 3, 1, 3, 100]) == 103
        """,
        """
def best_haul(values):
    before = 0
    best = 0
    for value in values:
        before, best = best, max(best, before + value)
    return best
""",
    ),
    problem(
        "grid-paths-blocked",
        "interview",
        """Write `count_paths(grid)` for a list of equally long strings in which "#" is blocked and
        "." is free. Return the number of ways from the top left to the bottom right cell with steps
        to the right and down only, over free cells. The grid has at least one cell.""",
        """
        count_paths(["."]) == 1
        count_paths(["#"]) == 0
        count_paths(["..", ".."]) == 2
        count_paths(["...", "...", "..."]) == 6
        count_paths(["...", ".#.", "..."]) == 2
        count_paths([".#", "#."]) == 0
        count_paths(["....."]) == 1
        count_paths(["..#.."]) == 0
        count_paths(["..", "#."]) == 1
        count_paths(["#.", ".."]) == 0
        count_paths(["..", ".#"]) == 0
        """,
        """
def count_paths(grid):
    ways = [0] * len(grid[0])
    ways[0] = 1
    for line in grid:
        for c, cell in enumerate(line):
            if cell == "#":
                ways[c] = 0
            elif c > 0:
                ways[c] += ways[c - 1]
    return ways[-1]
""",
    ),
    problem(
        "word-break",
        "interview",
        """Write `can_split(text, words)` that tells whether `text` can be cut into pieces each of
        which is in the list `words`. Words may be used more than once. The empty text can be cut
        into no pieces.""",
        """
        can_split("", []) is True
        can_split("a", []) is False
        can_split("teapot", ["tea", "pot"]) is True
        can_split("teapots", ["tea", "pot"]) is False
        can_split("aaa", ["a"]) is True
        can_split("catsand", ["cats", "cat", "sand"]) is True
        can_split("catsdog", ["cat", "sdo"]) is False
        can_split("abcd", ["abc", "ab", "cd"]) is True
        can_split("ab", ["b", "a"]) is True
        can_split("ab", ["b"]) is False
        """,
        """
def can_split(text, words):
    reachable = [True] + [False] * len(text)
    for end in range(1, len(text) + 1):
        for word in words:
            start = end - len(word)
            if start >= 0 and reachable[start] and text[start:end] == word:
                reachable[end] = True
    return reachable[-1]
""",
    ),
    problem(
        "common-subsequence",
        "interview",
        """Write `common_length(first, second)` that returns the length of the longest string that
        one can get from both strings by leaving out characters.""",
        """
        common_length("", "") == 0
        common_length("abc", "") == 0
        common_length("", "abc") == 0
        common_length("abc", "abc") == 3
        common_length("abc", "ac") == 2
        common_length("abcde", "ace") == 3
        common_length("abc", "def") == 0
        common_length("aggtab", "gxtxayb") == 4
        common_length("ab", "ba") == 1
        common_length("aa", "a") == 1
        """,
        """
def common_length(first, second):
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i in range(len(first)):
        for j in range(len(second)):
            if first[i] == second[j]:
                table[i + 1][j + 1] = table[i][j] + 1
            else:
                table[i + 1][j + 1] = max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]
""",
    ),
    problem(
        "knapsack-value",
        "interview",
        """Write `best_load(items, capacity)` for a list of pairs (weight, value), each available
        once, with weights of at least 1. Return the greatest total value of items whose total
        weight is at most `capacity`.""",
        """
        best_load([], 10) == 0
        best_load([(5, 10)], 5) == 10
        best_load([(5, 10)], 4) == 0
        best_load([(1, 1), (2, 6), (3, 10)], 5) == 16
        best_load([(2, 3), (2, 3)], 3) == 3
        best_load([(1, 5)], 10) == 5
        best_load([(3, 4), (4, 5), (7, 10)], 7) == 10
        best_load([(3, 6), (4, 5), (7, 10)], 7) == 11
        best_load([(1, 2), (1, 3)], 1) == 3
        best_load([(1, 2)], 0) == 0
        """,
        """
def best_load(items, capacity):
    best = [0] * (capacity + 1)
    for weight, value in items:
        for room in range(capacity, weight - 1, -1):
            best[room] = max(best[room], best[room - weight] + value)
    return best[capacity]
""",
    ),
    problem(
        "pascal-row",
        "introductory",
        """Write `pascal_row(n)` that returns row `n` of the triangle whose row 0 is [1] and in
        which every further row starts and ends with 1 and otherwise has the sums of two neighbours
        of the row before.""",
        """
        pascal_row(0) == [1]
        pascal_row(1) == [1, 1]
        pascal_row(2) == [1, 2, 1]
        pascal_row(3) == [1, 3, 3, 1]
        pascal_row(4) == [1, 4, 6, 4, 1]
        pascal_row(5) == [1, 5, 10, 10, 5, 1]
        sum(pascal_row(10)) == 1024
        pascal_row(6)[3] == 20
        """,
        """
def pascal_row(n):
    row = [1]
    for _ in range(n):
        middle = [row[i] + row[i + 1] for i in range(len(row) - 1)]
        row = [1] + middle + [1]
    return row
""",
    ),
)

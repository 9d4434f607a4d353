"""Problems about lists of numbers: picking, shifting, comparing neighbours, windows."""

from factory.problems.sources.source import problem

PROBLEMS = (
    problem(
        "second-largest",
        "introductory",
        """Write `second_largest(numbers)` that returns the second largest different value in a list
        of whole numbers, or None if there are fewer than two different values.""",
        """
        second_largest([]) is None
        second_largest([5]) is None
        second_largest([5, 5]) is None
        second_largest([1, 2]) == 1
        second_largest([2, 1]) == 1
        second_largest([3, 9, 9, 4]) == 4
        second_largest([-1, -5, -3]) == -3
        second_largest([9, 3, 9, 8, 1]) == 8
        second_largest([0, -1]) == -1
        """,
        """
def second_largest(numbers):
    best = None
    second = None
    for number in numbers:
        if best is None or number > best:
            second = best
            best = number
        elif number < best and (second is None or number > second):
            second = number
    return second
""",
        """
def second_largest(numbers):
    values = sorted(set(numbers))
    if len(values) < 2:
        return None
    return values[-2]
""",
    ),
    problem(
        "rotate-list",
        "introductory",
        """Write `rotate(items, steps)` that returns a new list with the items moved `steps` places
        to the right; items that fall off the end come back at the front. `steps` may be negative
        (to the left) or larger than the list. An empty list stays empty.""",
        """
        rotate([1, 2, 3, 4], 1) == [4, 1, 2, 3]
        rotate([1, 2, 3, 4], -1) == [2, 3, 4, 1]
        rotate([1, 2, 3], 3) == [1, 2, 3]
        rotate([1, 2, 3], 5) == [2, 3, 1]
        rotate([], 3) == []
        rotate([7], 10) == [7]
        rotate([1, 2, 3, 4, 5], 2) == [4, 5, 1, 2, 3]
        rotate([1, 2, 3], 0) == [1, 2, 3]
        """,
        """
def rotate(items, steps):
    if not items:
        return []
    cut = steps % len(items)
    return items[len(items) - cut:] + items[:len(items) - cut]
""",
        """
def rotate(items, steps):
    moved = list(items)
    for i, item in enumerate(items):
        moved[(i + steps) % len(items)] = item
    return moved
""",
    ),
    problem(
        "running-maximum",
        "introductory",
        """Write `running_maximum(numbers)` that returns a list of the same length in which entry i
        is the largest of the numbers up to and including position i.""",
        """
        running_maximum([]) == []
        running_maximum([3]) == [3]
        running_maximum([1, 3, 2, 5, 4]) == [1, 3, 3, 5, 5]
        running_maximum([5, 4, 3]) == [5, 5, 5]
        running_maximum([-3, -5, -1]) == [-3, -3, -1]
        running_maximum([0, 0]) == [0, 0]
        running_maximum([1, 2, 3]) == [1, 2, 3]
        running_maximum([-2, 0, -1, 7]) == [-2, 0, 0, 7]
        """,
        """
def running_maximum(numbers):
    result = []
    for number in numbers:
        if result and result[-1] > number:
            result.append(result[-1])
        else:
            result.append(number)
    return result
""",
    ),
    problem(
        "local-peaks",
        "introductory",
        """Write `peaks(heights)` that returns the positions of all entries that are strictly higher
        than each of their neighbours. The first and the last entry have only one neighbour; a
        single entry is a peak.""",
        """
        peaks([]) == []
        peaks([4]) == [0]
        peaks([1, 3, 2]) == [1]
        peaks([3, 1, 2]) == [0, 2]
        peaks([1, 2, 3]) == [2]
        peaks([3, 2, 1]) == [0]
        peaks([2, 2]) == []
        peaks([1, 5, 5, 1]) == []
        peaks([0, 2, 1, 3, 0]) == [1, 3]
        peaks([1, 2, 2]) == []
        """,
        """
def peaks(heights):
    found = []
    for i in range(len(heights)):
        if i > 0 and heights[i - 1] >= heights[i]:
            continue
        if i < len(heights) - 1 and heights[i + 1] >= heights[i]:
            continue
        found.append(i)
    return found
""",
    ),
    problem(
        "chunk-sums",
        "introductory",
        """Write `chunk_sums(numbers, size)` that cuts a list into chunks of `size` numbers, the
        last of which may be shorter, and returns the list of their sums. `size` is at least 1.""",
        """
        chunk_sums([1, 2, 3, 4], 2) == [3, 7]
        chunk_sums([1, 2, 3], 2) == [3, 3]
        chunk_sums([], 3) == []
        chunk_sums([5], 3) == [5]
        chunk_sums([1, 2, 3], 1) == [1, 2, 3]
        chunk_sums([1, 2, 3], 3) == [6]
        chunk_sums([1, 2, 3, 4, 5, 6, 7], 3) == [6, 15, 7]
        chunk_sums([-1, 1, -2, 2], 2) == [0, 0]
        """,
        """
def chunk_sums(numbers, size):
    sums = []
    for start in range(0, len(numbers), size):
        sums.append(sum(numbers[start:start + size]))
    return sums
""",
    ),
    problem(
        "window-average-above",
        "interview",
        """Write `windows_above(numbers, size, threshold)` that counts the windows of `size`
        neighbouring numbers whose average is strictly greater than `threshold`. `size` is at least
        1. If the list is shorter than `size`, the answer is 0.""",
        """
        windows_above([1, 2, 3, 4], 2, 2) == 2
        windows_above([1, 2, 3, 4], 2, 1.5) == 2
        windows_above([1, 2, 3], 4, 0) == 0
        windows_above([], 1, 0) == 0
        windows_above([5], 1, 4) == 1
        windows_above([5], 1, 5) == 0
        windows_above([4, 0, 4, 0, 4], 3, 2) == 2
        windows_above([1, 1, 1], 3, 0) == 1
        windows_above([-1, -1, 5], 1, -2) == 3
        windows_above([9, 0, 0, 0], 2, 1) == 1
        windows_above([0, 0, 0, 9], 2, 1) == 1
        """,
        """
def windows_above(numbers, size, threshold):
    if len(numbers) < size:
        return 0
    total = sum(numbers[:size])
    count = 0
    if total > threshold * size:
        count += 1
    for i in range(size, len(numbers)):
        total += numbers[i] - numbers[i - size]
        if total > threshold * size:
            count += 1
    return count
""",
    ),
    problem(
        "move-zeros",
        "introductory",
        """Write `zeros_last(numbers)` that returns a new list in which all zeros stand at the end
        and the other numbers keep their order.""",
        """
        zeros_last([0, 1, 0, 3, 2]) == [1, 3, 2, 0, 0]
        zeros_last([]) == []
        zeros_last([0]) == [0]
        zeros_last([1]) == [1]
        zeros_last([0, 0, 5]) == [5, 0, 0]
        zeros_last([4, 3]) == [4, 3]
        zeros_last([-1, 0, 1]) == [-1, 1, 0]
        zeros_last([2, 0, 1, 0]) == [2, 1, 0, 0]
        xs = [0, 1]; zeros_last(xs); assert xs == [0, 1]
        """,
        """
def zeros_last(numbers):
    kept = [number for number in numbers if number != 0]
    return kept + [0] * (len(numbers) - len(kept))
""",
    ),
    problem(
        "equilibrium-index",
        "interview",
        """Write `balance_point(numbers)` that returns the first position at which the sum of all
        numbers before it equals the sum of all numbers after it, or -1 if there is none. The sum of
        no numbers is 0.""",
        """
        balance_point([]) == -1
        balance_point([7]) == 0
        balance_point([1, 2, 3, 3]) == 2
        balance_point([1, 7, 3, 6, 5, 6]) == 3
        balance_point([1, 2, 3]) == -1
        balance_point([2, 1, -1]) == 0
        balance_point([-1, 1, 2]) == 2
        balance_point([0, 0]) == 0
        balance_point([5, 0, 5]) == 1
        """,
        """
def balance_point(numbers):
    after = sum(numbers)
    before = 0
    for i, number in enumerate(numbers):
        after -= number
        if before == after:
            return i
        before += number
    return -1
""",
    ),
    problem(
        "longest-rise",
        "introductory",
        """Write `longest_rise(numbers)` that returns the length of the longest stretch of
        neighbouring numbers in which each is strictly greater than the one before. An empty list
        has 0, a single number 1.""",
        """
        longest_rise([]) == 0
        longest_rise([3]) == 1
        longest_rise([1, 2, 3]) == 3
        longest_rise([3, 2, 1]) == 1
        longest_rise([1, 2, 2, 3]) == 2
        longest_rise([5, 1, 2, 3, 0]) == 3
        longest_rise([1, 2, 0, 1, 2, 3]) == 4
        longest_rise([1, 2, 3, 0, 1]) == 3
        longest_rise([2, 2]) == 1
        """,
        """
def longest_rise(numbers):
    if not numbers:
        return 0
    best = 1
    length = 1
    for i in range(1, len(numbers)):
        if numbers[i] > numbers[i - 1]:
            length += 1
            if length > best:
                best = length
        else:
            length = 1
    return best
""",
    ),
    problem(
        "pair-with-sum",
        "introductory",
        """Write `pair_with_sum(numbers, target)` that returns the positions (i, j), i < j, of two
        numbers that add up to `target`. If there are several pairs, take the one whose second
        position j is smallest, and among those the one with the smallest i. Return None if there is
        no pair.""",
        """
        pair_with_sum([1, 2, 3], 5) == (1, 2)
        pair_with_sum([1, 2, 3], 4) == (0, 2)
        pair_with_sum([1, 2, 3], 6) is None
        pair_with_sum([], 0) is None
        pair_with_sum([3, 3], 6) == (0, 1)
        pair_with_sum([3], 6) is None
        pair_with_sum([1, 1, 2], 3) == (0, 2)
        pair_with_sum([5, 1, 4, 2, 3], 5) == (1, 2)
        pair_with_sum([-1, 1, 0], 0) == (0, 1)
        """,
        """
def pair_with_sum(numbers, target):
    position = {}
    for j, number in enumerate(numbers):
        if target - number in position:
            return (position[target - number], j)
        if number not in position:
            position[number] = j
    return None
""",
        """
def pair_with_sum(numbers, target):
    for j in range(len(numbers)):
        for i in range(j):
            if numbers[i] + numbers[j] == target:
                return (i, j)
    return None
""",
    ),
    problem(
        "deduplicate-keep-last",
        "introductory",
        """Write `keep_last(items)` that removes duplicates from a list so that of equal items the
        last one stays. The order of the remaining items is kept.""",
        """
        keep_last([1, 2, 1, 3]) == [2, 1, 3]
        keep_last([]) == []
        keep_last([5]) == [5]
        keep_last([1, 1, 1]) == [1]
        keep_last([1, 2, 3]) == [1, 2, 3]
        keep_last([3, 1, 2, 1, 3]) == [2, 1, 3]
        keep_last(["a", "b", "a"]) == ["b", "a"]
        keep_last([0, 1, 0]) == [1, 0]
        """,
        """
def keep_last(items):
    seen = set()
    kept = []
    for item in reversed(items):
        if item not in seen:
            seen.add(item)
            kept.append(item)
    kept.reverse()
    return kept
""",
    ),
    problem(
        "alternating-signs",
        "introductory",
        """Write `alternates(numbers)` that tells whether the numbers of a list are positive and
        negative in turn. Zero is neither, so a list with a zero never alternates. Lists with no
        number alternate; a list with one number does unless the number is zero.""",
        """
        alternates([]) is True
        alternates([1]) is True
        alternates([-4]) is True
        alternates([0]) is False
        alternates([1, -2, 3]) is True
        alternates([1, 2]) is False
        alternates([-1, 2, -3, 4]) is True
        alternates([-1, -2]) is False
        alternates([1, 0, -1]) is False
        alternates([1, -1, 0]) is False
        alternates([1, -1, -1]) is False
        """,
        """
def alternates(numbers):
    for i, number in enumerate(numbers):
        if number == 0:
            return False
        if i > 0 and number * numbers[i - 1] > 0:
            return False
    return True
""",
    ),
)

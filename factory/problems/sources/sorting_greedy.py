"""Problems about ordering and choosing: rankings, merging, schedules, packing."""

from factory.problems.sources.source import problem

PROBLEMS = (
    problem(
        "merge-sorted",
        "introductory",
        """Write `merge_sorted(first, second)` that merges two sorted lists into one sorted list
        without calling a sort function. The lists passed in must not change.""",
        """
        merge_sorted([], []) == []
        merge_sorted([1], []) == [1]
        merge_sorted([], [1]) == [1]
        merge_sorted([1, 3], [2, 4]) == [1, 2, 3, 4]
        merge_sorted([1, 2], [3, 4]) == [1, 2, 3, 4]
        merge_sorted([3, 4], [1, 2]) == [1, 2, 3, 4]
        merge_sorted([1, 1], [1]) == [1, 1, 1]
        merge_sorted([-5, 10], [0]) == [-5, 0, 10]
        a = [1, 5]; merge_sorted(a, [2]); assert a == [1, 5]
        """,
        """
def merge_sorted(first, second):
    merged = []
    i = 0
    j = 0
    while i < len(first) and j < len(second):
        if first[i] <= second[j]:
            merged.append(first[i])
            i += 1
        else:
            merged.append(second[j])
            j += 1
    return merged + first[i:] + second[j:]
""",
    ),
    problem(
        "competition-ranks",
        "introductory",
        """Write `ranks(scores)` that returns the rank of each score in a list, the highest score
        having rank 1. Equal scores share a rank, and the ranks after them are skipped: [50, 70, 70,
        20] gives [3, 1, 1, 4].""",
        """
        ranks([]) == []
        ranks([5]) == [1]
        ranks([50, 70, 70, 20]) == [3, 1, 1, 4]
        ranks([1, 2, 3]) == [3, 2, 1]
        ranks([3, 2, 1]) == [1, 2, 3]
        ranks([4, 4, 4]) == [1, 1, 1]
        ranks([1, 5, 1, 5]) == [3, 1, 3, 1]
        ranks([-1, 0]) == [2, 1]
        """,
        """
def ranks(scores):
    result = []
    for score in scores:
        better = 0
        for other in scores:
            if other > score:
                better += 1
        result.append(better + 1)
    return result
""",
        """
def ranks(scores):
    ordered = sorted(scores, reverse=True)
    return [ordered.index(score) + 1 for score in scores]
""",
    ),
    problem(
        "sort-by-frequency",
        "introductory",
        """Write `by_frequency(items)` that returns the different items of a list of numbers, the
        most frequent first. Items that occur equally often are ordered from small to large.""",
        """
        by_frequency([]) == []
        by_frequency([7]) == [7]
        by_frequency([1, 2, 2]) == [2, 1]
        by_frequency([3, 1, 2]) == [1, 2, 3]
        by_frequency([5, 5, 1, 1, 9]) == [1, 5, 9]
        by_frequency([9, 9, 9, 1, 1, 4]) == [9, 1, 4]
        by_frequency([-1, -2, -2, 0]) == [-2, -1, 0]
        by_frequency([2, 2, 2, 2]) == [2]
        """,
        """
def by_frequency(items):
    counts = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return sorted(counts, key=lambda item: (-counts[item], item))
""",
    ),
    problem(
        "most-talks",
        "interview",
        """Write `most_talks(talks)` for a list of pairs (start, end) with start < end. Return the
        largest number of talks that one visitor can hear completely; the next talk may start when
        the last one ends.""",
        """
        most_talks([]) == 0
        most_talks([(1, 2)]) == 1
        most_talks([(1, 3), (2, 4)]) == 1
        most_talks([(1, 2), (2, 3)]) == 2
        most_talks([(1, 10), (2, 3), (4, 5)]) == 2
        most_talks([(5, 6), (1, 2), (3, 4)]) == 3
        most_talks([(1, 4), (3, 5), (4, 7), (5, 7)]) == 2
        most_talks([(0, 6), (1, 2), (2, 5), (5, 6)]) == 3
        most_talks([(-5, -3), (-4, 0), (-3, 1)]) == 2
        """,
        """
def most_talks(talks):
    count = 0
    free_from = None
    for start, end in sorted(talks, key=lambda talk: talk[1]):
        if free_from is None or start >= free_from:
            count += 1
            free_from = end
    return count
""",
    ),
    problem(
        "boats-of-two",
        "interview",
        """Write `boats(weights, limit)` that returns the smallest number of boats for people with
        the given weights, if each boat carries at most two people who together weigh at most
        `limit`. Nobody weighs more than `limit`.""",
        """
        boats([], 100) == 0
        boats([50], 100) == 1
        boats([50, 50], 100) == 1
        boats([60, 50], 100) == 2
        boats([10, 20, 30], 100) == 2
        boats([70, 50, 80, 50], 100) == 3
        boats([90, 10, 80, 20], 100) == 2
        boats([100, 100], 100) == 2
        boats([30, 70, 20, 60, 50], 100) == 3
        boats([40, 60, 60], 100) == 2
        """,
        """
def boats(weights, limit):
    ordered = sorted(weights)
    light = 0
    heavy = len(ordered) - 1
    count = 0
    while light <= heavy:
        if ordered[light] + ordered[heavy] <= limit:
            light += 1
        heavy -= 1
        count += 1
    return count
""",
    ),
    problem(
        "count-inversions",
        "introductory",
        """Write `inversions(numbers)` that counts the pairs of positions i < j for which the number
        at i is strictly greater than the number at j.""",
        """
        inversions([]) == 0
        inversions([1]) == 0
        inversions([1, 2]) == 0
        inversions([2, 1]) == 1
        inversions([3, 2, 1]) == 3
        inversions([2, 2]) == 0
        inversions([1, 3, 2, 4]) == 1
        inversions([2, 3, 1]) == 2
        inversions([5, 1, 2, 3]) == 3
        """,
        """
def inversions(numbers):
    count = 0
    for i in range(len(numbers)):
        for j in range(i + 1, len(numbers)):
            if numbers[i] > numbers[j]:
                count += 1
    return count
""",
    ),
    problem(
        "first-not-smaller",
        "introductory",
        """Write `binary_search(numbers, target)` for a sorted list of numbers. Return the position
        of the first entry that is greater than or equal to `target`; if there is none, the length
        of the list.""",
        """
        binary_search([], 5) == 0
        binary_search([1, 3, 5], 3) == 1
        binary_search([1, 3, 5], 4) == 2
        binary_search([1, 3, 5], 0) == 0
        binary_search([1, 3, 5], 6) == 3
        binary_search([1, 3, 5], 5) == 2
        binary_search([2, 2, 2], 2) == 0
        binary_search([1, 2, 2, 3], 2) == 1
        binary_search([1], 1) == 0
        binary_search([1], 2) == 1
        """,
        """
def binary_search(numbers, target):
    low = 0
    high = len(numbers)
    while low < high:
        middle = (low + high) // 2
        if numbers[middle] < target:
            low = middle + 1
        else:
            high = middle
    return low
""",
    ),
    problem(
        "fill-boxes",
        "introductory",
        """Write `pack(sizes, room)` that puts things, in the given order, into boxes: each goes
        into the current box if it still fits, otherwise a new box is begun and the old one is
        closed for good. Return the list of boxes, each a list of sizes. A thing larger than `room`
        gets a box of its own.""",
        """
        pack([], 10) == []
        pack([4], 10) == [[4]]
        pack([4, 6], 10) == [[4, 6]]
        pack([4, 7], 10) == [[4], [7]]
        pack([4, 7, 3], 10) == [[4], [7, 3]]
        pack([12, 1], 10) == [[12], [1]]
        pack([1, 12, 1], 10) == [[1], [12], [1]]
        pack([5, 5, 5, 5], 10) == [[5, 5], [5, 5]]
        pack([9, 1, 1], 10) == [[9, 1], [1]]
        """,
        """
def pack(sizes, room):
    boxes = []
    used = 0
    for size in sizes:
        if boxes and used + size <= room:
            boxes[-1].append(size)
            used += size
        else:
            boxes.append([size])
            used = size
    return boxes
""",
    ),
    problem(
        "sort-three-colours",
        "introductory",
        """Write `sort_flags(colours)` for a list of the strings "red", "white" and "blue". Return a
        new list in which all reds come first, then all whites, then all blues, followed by anything
        else in its original order.""",
        """
        sort_flags([]) == []
        sort_flags(["blue", "red"]) == ["red", "blue"]
        sort_flags(["white", "blue", "red"]) == ["red", "white", "blue"]
        sort_flags(["red", "red"]) == ["red", "red"]
        sort_flags(["pink", "blue"]) == ["blue", "pink"]
        sort_flags(["x", "red", "a"]) == ["red", "x", "a"]
        sort_flags(["blue", "white", "blue"]) == ["white", "blue", "blue"]
        sort_flags(["pink"]) == ["pink"]
        sort_flags(["white", "red", "white", "red"]) == ["red", "red", "white", "white"]
        """,
        """
def sort_flags(colours):
    known = ["red", "white", "blue"]
    result = []
    for name in known:
        for colour in colours:
            if colour == name:
                result.append(colour)
    for colour in colours:
        if colour not in known:
            result.append(colour)
    return result
""",
    ),
    problem(
        "stock-profit",
        "introductory",
        """Write `best_trade(prices)` that returns the greatest profit from buying once and selling
        once on a later day, given the price of each day. If no trade makes a profit, return 0.""",
        """
        best_trade([]) == 0
        best_trade([5]) == 0
        best_trade([1, 5]) == 4
        best_trade([5, 1]) == 0
        best_trade([7, 1, 5, 3, 6, 4]) == 5
        best_trade([3, 3]) == 0
        best_trade([2, 4, 1]) == 2
        best_trade([2, 10, 1, 5]) == 8
        best_trade([9, 8, 7]) == 0
        best_trade([4, 6, 1, 2, 3]) == 2
        """,
        """
def best_trade(prices):
    best = 0
    lowest = None
    for price in prices:
        if lowest is None or price < lowest:
            lowest = price
        elif price - lowest > best:
            best = price - lowest
    return best
""",
    ),
    problem(
        "reach-last-position",
        "interview",
        """Write `can_jump(steps)` for a list of whole numbers of at least 0: from position i one
        may go forward by 1 up to steps[i] positions. Starting at position 0, tell whether the last
        position can be reached. In an empty list nothing can be reached.""",
        """
        can_jump([]) is False
        can_jump([0]) is True
        can_jump([1, 0]) is True
        can_jump([0, 1]) is False
        can_jump([2, 3, 1, 1, 4]) is True
        can_jump([3, 2, 1, 0, 4]) is False
        can_jump([2, 0, 0]) is True
        can_jump([1, 1, 0, 1]) is False
        can_jump([5, 0, 0, 0]) is True
        can_jump([1, 2, 0, 1]) is True
        """,
        """
def can_jump(steps):
    if not steps:
        return False
    reach = 0
    for i, step in enumerate(steps):
        if i > reach:
            return False
        reach = max(reach, i + step)
    return True
""",
    ),
)

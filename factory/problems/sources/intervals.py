"""Problems about intervals: merging, gaps, overlaps, bookings."""

from factory.problems.sources.source import problem

PROBLEMS = (
    problem(
        "merge-intervals",
        "interview",
        """Write `merge(intervals)` for a list of pairs (start, end) with start <= end, in any
        order. Intervals that overlap or touch (one ends where the other starts) are joined. Return
        the resulting pairs, sorted.""",
        """
        merge([]) == []
        merge([(1, 2)]) == [(1, 2)]
        merge([(1, 3), (2, 4)]) == [(1, 4)]
        merge([(1, 2), (2, 3)]) == [(1, 3)]
        merge([(1, 2), (3, 4)]) == [(1, 2), (3, 4)]
        merge([(3, 4), (1, 2)]) == [(1, 2), (3, 4)]
        merge([(1, 10), (2, 3)]) == [(1, 10)]
        merge([(1, 4), (0, 2), (6, 8), (7, 9)]) == [(0, 4), (6, 9)]
        merge([(5, 5), (5, 5)]) == [(5, 5)]
        xs = [(2, 3), (0, 1)]; merge(xs); assert xs == [(2, 3), (0, 1)]
        """,
        """
def merge(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
""",
    ),
    problem(
        "free-slots",
        "interview",
        """Write `free_slots(busy, start, end)` for a day from `start` to `end` and a list of busy
        pairs (from, to), sorted, which don't overlap and lie within the day. Return the list of
        pairs in between that are free and not empty.""",
        """
        free_slots([], 0, 10) == [(0, 10)]
        free_slots([], 5, 5) == []
        free_slots([(2, 3)], 0, 10) == [(0, 2), (3, 10)]
        free_slots([(0, 3)], 0, 10) == [(3, 10)]
        free_slots([(7, 10)], 0, 10) == [(0, 7)]
        free_slots([(0, 10)], 0, 10) == []
        free_slots([(1, 2), (2, 4)], 0, 5) == [(0, 1), (4, 5)]
        free_slots([(1, 2), (3, 4)], 1, 4) == [(2, 3)]
        free_slots([(9, 12), (13, 17)], 8, 18) == [(8, 9), (12, 13), (17, 18)]
        """,
        """
def free_slots(busy, start, end):
    free = []
    current = start
    for begin, finish in busy:
        if begin > current:
            free.append((current, begin))
        current = finish
    if current < end:
        free.append((current, end))
    return free
""",
    ),
    problem(
        "most-guests",
        "interview",
        """Write `most_guests(visits)` for a list of pairs (arrives, leaves) with arrives < leaves.
        A guest is there from the arrival until just before leaving. Return the largest number of
        guests that are there at the same time.""",
        """
        most_guests([]) == 0
        most_guests([(1, 2)]) == 1
        most_guests([(1, 3), (2, 4)]) == 2
        most_guests([(1, 2), (2, 3)]) == 1
        most_guests([(1, 5), (2, 3), (4, 6)]) == 2
        most_guests([(1, 9), (2, 8), (3, 7)]) == 3
        most_guests([(5, 6), (1, 2), (3, 4)]) == 1
        most_guests([(1, 4), (1, 4), (4, 5)]) == 2
        most_guests([(1, 3), (3, 5), (2, 4)]) == 2
        """,
        """
def most_guests(visits):
    events = []
    for arrives, leaves in visits:
        events.append((arrives, 1))
        events.append((leaves, -1))
    present = 0
    most = 0
    for _, change in sorted(events):
        present += change
        most = max(most, present)
    return most
""",
        """
def most_guests(visits):
    most = 0
    for moment, _ in visits:
        present = 0
        for arrives, leaves in visits:
            if arrives <= moment < leaves:
                present += 1
        if present > most:
            most = present
    return most
""",
    ),
    problem(
        "covered-length",
        "introductory",
        """Write `covered(intervals)` that returns how many whole numbers are covered by at least
        one of the given pairs (first, last). Both ends are covered; a pair with last < first covers
        nothing.""",
        """
        covered([]) == 0
        covered([(3, 3)]) == 1
        covered([(1, 5)]) == 5
        covered([(1, 2), (4, 5)]) == 4
        covered([(1, 3), (3, 5)]) == 5
        covered([(5, 1)]) == 0
        covered([(1, 10), (2, 3)]) == 10
        covered([(-2, 2), (0, 4)]) == 7
        covered([(1, 2), (1, 2)]) == 2
        """,
        """
def covered(intervals):
    numbers = set()
    for first, last in intervals:
        for number in range(first, last + 1):
            numbers.add(number)
    return len(numbers)
""",
    ),
    problem(
        "insert-booking",
        "introductory",
        """Write `can_book(bookings, start, end)` that tells whether a new booking from `start` to
        `end` fits: it must not overlap any pair of the list `bookings`, but may begin when another
        ends or end when another begins. A booking with start >= end never fits.""",
        """
        can_book([], 1, 2) is True
        can_book([], 2, 2) is False
        can_book([], 3, 2) is False
        can_book([(1, 3)], 3, 4) is True
        can_book([(1, 3)], 0, 1) is True
        can_book([(1, 3)], 2, 4) is False
        can_book([(1, 3)], 0, 2) is False
        can_book([(1, 9)], 2, 3) is False
        can_book([(2, 3)], 1, 9) is False
        can_book([(1, 2), (4, 5)], 2, 4) is True
        can_book([(1, 2), (4, 6)], 2, 5) is False
        """,
        """
def can_book(bookings, start, end):
    if start >= end:
        return False
    for begin, finish in bookings:
        if start < finish and begin < end:
            return False
    return True
""",
    ),
    problem(
        "summarise-ranges",
        "introductory",
        """Write `summarise(numbers)` for a sorted list of different whole numbers. Return a list of
        strings: runs of neighbouring numbers as "first-last", numbers that stand alone as
        themselves.""",
        """
        summarise([]) == []
        summarise([4]) == ["4"]
        summarise([1, 2]) == ["1-2"]
        summarise([1, 2, 3]) == ["1-3"]
        summarise([1, 3]) == ["1", "3"]
        summarise([0, 1, 2, 5, 7, 8]) == ["0-2", "5", "7-8"]
        summarise([1, 2, 4]) == ["1-2", "4"]
        summarise([1, 3, 4]) == ["1", "3-4"]
        summarise([10, 20, 30]) == ["10", "20", "30"]
        """,
        """
def summarise(numbers):
    ranges = []
    i = 0
    while i < len(numbers):
        first = numbers[i]
        while i + 1 < len(numbers) and numbers[i + 1] == numbers[i] + 1:
            i += 1
        if numbers[i] == first:
            ranges.append(str(first))
        else:
            ranges.append(str(first) + "-" + str(numbers[i]))
        i += 1
    return ranges
""",
    ),
    problem(
        "intersect-lists",
        "interview",
        """Write `intersect(first, second)` for two sorted lists of pairs (start, end); within each
        list the intervals don't overlap. Return the sorted list of the parts with a length above
        zero that lie in an interval of both lists.""",
        """
        intersect([], [(1, 2)]) == []
        intersect([(1, 5)], [(2, 3)]) == [(2, 3)]
        intersect([(1, 3)], [(3, 5)]) == []
        intersect([(1, 4)], [(2, 6)]) == [(2, 4)]
        intersect([(0, 2), (5, 10)], [(1, 5), (8, 12)]) == [(1, 2), (8, 10)]
        intersect([(1, 10)], [(2, 3), (4, 5)]) == [(2, 3), (4, 5)]
        intersect([(2, 3), (4, 5)], [(1, 10)]) == [(2, 3), (4, 5)]
        intersect([(1, 2)], []) == []
        intersect([(1, 3), (3, 6)], [(2, 4)]) == [(2, 3), (3, 4)]
        """,
        """
def intersect(first, second):
    common = []
    i = 0
    j = 0
    while i < len(first) and j < len(second):
        start = max(first[i][0], second[j][0])
        end = min(first[i][1], second[j][1])
        if start < end:
            common.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return common
""",
    ),
    problem(
        "largest-gap",
        "introductory",
        """Write `largest_gap(positions)` that returns the largest distance between two neighbouring
        positions on a line, for a list of numbers in any order. With fewer than two positions
        return 0.""",
        """
        largest_gap([]) == 0
        largest_gap([7]) == 0
        largest_gap([1, 4]) == 3
        largest_gap([4, 1]) == 3
        largest_gap([1, 2, 10, 4]) == 6
        largest_gap([5, 5]) == 0
        largest_gap([-3, 3]) == 6
        largest_gap([0, 10, 1, 2]) == 8
        largest_gap([9, 0, 1, 2]) == 7
        largest_gap([0, 7, 8, 9]) == 7
        """,
        """
def largest_gap(positions):
    ordered = sorted(positions)
    gap = 0
    for i in range(1, len(ordered)):
        distance = ordered[i] - ordered[i - 1]
        if distance > gap:
            gap = distance
    return gap
""",
    ),
)

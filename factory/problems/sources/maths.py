"""Problems about arithmetic: sums, rounding, money, digits, simple geometry."""

from factory.problems.sources.source import problem

PROBLEMS = (
    problem(
        "progressive-tax",
        "interview",
        """Write `tax(income)` for a tax in whole coins: nothing on the first 100 coins of an
        income, 10 percent of what lies between 100 and 500, and 30 percent of what lies above 500.
        Round the whole tax down to a whole coin. `income` is a whole number, at least 0.""",
        """
        tax(0) == 0
        tax(100) == 0
        tax(101) == 0
        tax(110) == 1
        tax(119) == 1
        tax(500) == 40
        tax(510) == 43
        tax(505) == 41
        tax(1000) == 190
        tax(499) == 39
        """,
        """
def tax(income):
    tenths = 0
    if income > 500:
        tenths += 3 * (income - 500)
        income = 500
    if income > 100:
        tenths += income - 100
    return tenths // 10
""",
    ),
    problem(
        "digit-persistence",
        "introductory",
        """Write `persistence(number)` that counts how often the digits of a whole number (at least
        0) must be added up, and then those of the sum, and so on, until one digit is left. 199
        needs three steps: 19, 10, 1.""",
        """
        persistence(0) == 0
        persistence(9) == 0
        persistence(10) == 1
        persistence(18) == 1
        persistence(19) == 2
        persistence(199) == 3
        persistence(123) == 1
        persistence(99) == 2
        persistence(1000000) == 1
        """,
        """
def persistence(number):
    steps = 0
    while number >= 10:
        number = sum(int(digit) for digit in str(number))
        steps += 1
    return steps
""",
    ),
    problem(
        "round-to-multiple",
        "introductory",
        """Write `round_to(number, step)` that rounds a whole number to the nearest multiple of
        `step` (at least 1). If two multiples are equally near, take the greater one. `number` may
        be negative.""",
        """
        round_to(7, 5) == 5
        round_to(8, 5) == 10
        round_to(10, 5) == 10
        round_to(5, 10) == 10
        round_to(4, 10) == 0
        round_to(-5, 10) == 0
        round_to(-6, 10) == -10
        round_to(0, 3) == 0
        round_to(13, 1) == 13
        round_to(3, 2) == 4
        round_to(-8, 5) == -10
        """,
        """
def round_to(number, step):
    below = number // step * step
    if 2 * (number - below) >= step:
        return below + step
    return below
""",
    ),
    problem(
        "triangle-kind",
        "introductory",
        """Write `triangle_kind(a, b, c)` for three side lengths. Return "none" if no triangle with
        an area above zero has these sides, else "equilateral" if all sides are equal, "isosceles"
        if exactly two are, "scalene" otherwise.""",
        """
        triangle_kind(3, 3, 3) == "equilateral"
        triangle_kind(3, 3, 2) == "isosceles"
        triangle_kind(2, 3, 3) == "isosceles"
        triangle_kind(3, 2, 3) == "isosceles"
        triangle_kind(3, 4, 5) == "scalene"
        triangle_kind(1, 2, 3) == "none"
        triangle_kind(3, 1, 1) == "none"
        triangle_kind(1, 3, 2) == "none"
        triangle_kind(1, 4, 2) == "none"
        triangle_kind(0, 0, 0) == "none"
        triangle_kind(5, 3, 2) == "none"
        triangle_kind(2, 3, 4) == "scalene"
        """,
        """
def triangle_kind(a, b, c):
    if a + b <= c or a + c <= b or b + c <= a:
        return "none"
    if a == b and b == c:
        return "equilateral"
    if a == b or b == c or a == c:
        return "isosceles"
    return "scalene"
""",
        """
def triangle_kind(a, b, c):
    sides = sorted([a, b, c])
    if sides[0] + sides[1] <= sides[2]:
        return "none"
    different = len(set(sides))
    if different == 1:
        return "equilateral"
    if different == 2:
        return "isosceles"
    return "scalene"
""",
    ),
    problem(
        "base-convert",
        "introductory",
        """Write `to_base(number, base)` that writes a whole number (it may be negative) in a base
        from 2 to 16 with the digits 0-9 and a-f. Negative numbers begin with "-". Zero is "0".""",
        """
        to_base(0, 2) == "0"
        to_base(5, 2) == "101"
        to_base(255, 16) == "ff"
        to_base(10, 10) == "10"
        to_base(-6, 3) == "-20"
        to_base(7, 8) == "7"
        to_base(8, 8) == "10"
        to_base(171, 16) == "ab"
        to_base(1, 2) == "1"
        """,
        """
def to_base(number, base):
    if number == 0:
        return "0"
    digits = ""
    rest = abs(number)
    while rest > 0:
        digits = "0123456789abcdef"[rest % base] + digits
        rest //= base
    if number < 0:
        return "-" + digits
    return digits
""",
    ),
    problem(
        "median-value",
        "introductory",
        """Write `median(numbers)` that returns the middle one of a list of numbers when sorted, or
        the average of the two middle ones if their count is even. Return None for an empty list.
        The list passed in must not change.""",
        """
        median([]) is None
        median([4]) == 4
        median([3, 1, 2]) == 2
        median([1, 2]) == 1.5
        median([4, 1, 3, 2]) == 2.5
        median([5, 5, 1, 9, 7]) == 5
        median([-1, -3]) == -2
        median([10, 0, 0, 10]) == 5
        xs = [3, 1, 2]; median(xs); assert xs == [3, 1, 2]
        """,
        """
def median(numbers):
    ordered = sorted(numbers)
    count = len(ordered)
    if count == 0:
        return None
    middle = count // 2
    if count % 2 == 1:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
""",
    ),
    problem(
        "clock-angle",
        "introductory",
        """Write `clock_angle(hour, minute)` that returns the smaller angle in degrees between the
        two hands of a clock (hour from 0 to 23, minute from 0 to 59). The hour hand moves on with
        the minutes.""",
        """
        clock_angle(12, 0) == 0
        clock_angle(0, 0) == 0
        clock_angle(3, 0) == 90
        clock_angle(9, 0) == 90
        clock_angle(6, 0) == 180
        clock_angle(3, 30) == 75
        clock_angle(12, 30) == 165
        clock_angle(15, 0) == 90
        clock_angle(1, 1) == 24.5
        clock_angle(23, 59) == 5.5
        """,
        """
def clock_angle(hour, minute):
    hour_hand = hour % 12 * 30 + minute / 2
    minute_hand = minute * 6
    angle = abs(hour_hand - minute_hand)
    if angle > 180:
        angle = 360 - angle
    return angle
""",
    ),
    problem(
        "rectangles-overlap",
        "interview",
        """Write `overlap_area(first, second)` for two rectangles given as (left, bottom, right,
        top) with left <= right and bottom <= top. Return the area they have in common, 0 if they
        only touch or don't meet.""",
        """
        overlap_area((0, 0, 2, 2), (1, 1, 3, 3)) == 1
        overlap_area((0, 0, 2, 2), (2, 0, 4, 2)) == 0
        overlap_area((0, 0, 2, 2), (3, 3, 4, 4)) == 0
        overlap_area((0, 0, 4, 4), (1, 1, 2, 3)) == 2
        overlap_area((1, 1, 2, 3), (0, 0, 4, 4)) == 2
        overlap_area((0, 0, 3, 1), (1, 0, 2, 5)) == 1
        overlap_area((0, 0, 1, 1), (0, 2, 1, 3)) == 0
        overlap_area((-2, -2, 0, 0), (-1, -1, 1, 1)) == 1
        overlap_area((0, 0, 5, 5), (0, 0, 5, 5)) == 25
        """,
        """
def overlap_area(first, second):
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    if width <= 0 or height <= 0:
        return 0
    return width * height
""",
    ),
    problem(
        "ticket-price",
        "introductory",
        """Write `ticket_price(ages)` for a group at a museum. Children under 6 are free, from 6 to
        17 they pay 4, adults 10, people of 65 and more 6. Groups of 10 or more people (children
        under 6 included) pay 20 percent less in all, rounded down to a whole number.""",
        """
        ticket_price([]) == 0
        ticket_price([5]) == 0
        ticket_price([6]) == 4
        ticket_price([17]) == 4
        ticket_price([18]) == 10
        ticket_price([64]) == 10
        ticket_price([65]) == 6
        ticket_price([30, 40, 8, 3]) == 24
        ticket_price([20] * 9) == 90
        ticket_price([20] * 10) == 80
        ticket_price([20] * 9 + [2]) == 72
        ticket_price([7] * 11) == 35
        """,
        """
def ticket_price(ages):
    total = 0
    for age in ages:
        if age < 6:
            continue
        if age < 18:
            total += 4
        elif age < 65:
            total += 10
        else:
            total += 6
    if len(ages) >= 10:
        total = total * 8 // 10
    return total
""",
    ),
    problem(
        "savings-years",
        "introductory",
        """Write `years_to_reach(start, yearly, percent, goal)`: an account begins with `start`
        coins. Each year first the interest of `percent` percent is added, rounded down to whole
        coins, then `yearly` coins are paid in. Return after how many years the account first holds
        at least `goal` coins, or -1 if it hasn't after 100 years.""",
        """
        years_to_reach(100, 0, 10, 100) == 0
        years_to_reach(100, 0, 10, 110) == 1
        years_to_reach(100, 0, 10, 111) == 2
        years_to_reach(0, 10, 0, 100) == 10
        years_to_reach(0, 0, 5, 1) == -1
        years_to_reach(0, 1, 0, 100) == 100
        years_to_reach(0, 1, 0, 101) == -1
        years_to_reach(99, 0, 1, 200) == -1
        years_to_reach(1000, 100, 5, 1500) == 4
        years_to_reach(50, 10, 20, 130) == 4
        """,
        """
def years_to_reach(start, yearly, percent, goal):
    account = start
    for year in range(101):
        if account >= goal:
            return year
        account += account * percent // 100
        account += yearly
    return -1
""",
    ),
)

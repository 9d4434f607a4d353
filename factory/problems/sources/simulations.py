"""Problems that play something through: games, machines, walks, growth."""

from factory.problems.sources.source import problem

PROBLEMS = (
    problem(
        "robot-walk",
        "introductory",
        """Write `walk(commands)` for a robot that starts at (0, 0) and looks north. "L" and "R"
        turn it by 90 degrees, "F" moves it one step forward. North makes y larger, east makes x
        larger. Other characters are ignored. Return the final position (x, y).""",
        """
        walk("") == (0, 0)
        walk("F") == (0, 1)
        walk("RF") == (1, 0)
        walk("LF") == (-1, 0)
        walk("RRF") == (0, -1)
        walk("FRFRFRF") == (0, 0)
        walk("FFxF") == (0, 3)
        walk("LLLF") == (1, 0)
        walk("FFLFRF") == (-1, 3)
        walk("RFFLF") == (2, 1)
        """,
        """
def walk(commands):
    x = 0
    y = 0
    dx = 0
    dy = 1
    for command in commands:
        if command == "L":
            dx, dy = -dy, dx
        elif command == "R":
            dx, dy = dy, -dx
        elif command == "F":
            x += dx
            y += dy
    return (x, y)
""",
        """
def walk(commands):
    moves = [(0, 1), (1, 0), (0, -1), (-1, 0)]
    facing = 0
    x = 0
    y = 0
    for command in commands:
        if command == "L":
            facing = (facing - 1) % 4
        elif command == "R":
            facing = (facing + 1) % 4
        elif command == "F":
            x += moves[facing][0]
            y += moves[facing][1]
    return (x, y)
""",
    ),
    problem(
        "counting-out",
        "interview",
        """Write `last_left(names, count)` for children in a circle. Counting starts with the first
        name at 1; whoever gets the number `count` leaves, and counting goes on at 1 with the next
        one. Return the name that is left at the end, or None for an empty list. `count` is at least
        1.""",
        """
        last_left([], 3) is None
        last_left(["a"], 5) == "a"
        last_left(["a", "b"], 1) == "b"
        last_left(["a", "b"], 2) == "a"
        last_left(["a", "b", "c"], 2) == "c"
        last_left(["a", "b", "c"], 1) == "c"
        last_left(["a", "b", "c", "d", "e"], 2) == "c"
        last_left(["a", "b", "c", "d", "e"], 3) == "d"
        ns = ["a", "b"]; last_left(ns, 1); assert ns == ["a", "b"]
        """,
        """
def last_left(names, count):
    circle = list(names)
    if not circle:
        return None
    position = 0
    while len(circle) > 1:
        position = (position + count - 1) % len(circle)
        circle.pop(position)
    return circle[0]
""",
    ),
    problem(
        "life-row",
        "interview",
        """Write `next_row(row)` for a string of "#" (alive) and "." (dead). In the next generation
        a cell is alive if exactly one of its two neighbours is alive now. Beyond both ends
        everything is dead. Return the next row.""",
        """
        next_row("") == ""
        next_row("#") == "."
        next_row(".") == "."
        next_row("#.") == ".#"
        next_row(".#.") == "#.#"
        next_row("##") == "##"
        next_row("#.#") == "..."
        next_row("###") == "#.#"
        next_row("..#..") == ".#.#."
        next_row("#...") == ".#.."
        next_row("...#") == "..#."
        """,
        """
def next_row(row):
    new = ""
    for i in range(len(row)):
        left = i > 0 and row[i - 1] == "#"
        right = i < len(row) - 1 and row[i + 1] == "#"
        if left != right:
            new += "#"
        else:
            new += "."
    return new
""",
    ),
    problem(
        "vending-change",
        "introductory",
        """Write `change(paid, price)` that returns the list of coins to give back, largest first,
        from coins of 50, 20, 10, 5, 2 and 1, always taking the largest coin that fits. If less than
        the price was paid, return None.""",
        """
        change(10, 10) == []
        change(9, 10) is None
        change(11, 10) == [1]
        change(100, 1) == [50, 20, 20, 5, 2, 2]
        change(50, 0) == [50]
        change(8, 0) == [5, 2, 1]
        change(40, 0) == [20, 20]
        change(5, 1) == [2, 2]
        change(115, 5) == [50, 50, 10]
        """,
        """
def change(paid, price):
    rest = paid - price
    if rest < 0:
        return None
    coins = []
    for coin in (50, 20, 10, 5, 2, 1):
        while rest >= coin:
            coins.append(coin)
            rest -= coin
    return coins
""",
    ),
    problem(
        "bowling-simple",
        "interview",
        """Write `score(frames)` for a simplified bowling game: a list of pairs (first throw, second
        throw) of fallen pins, at most 10 together. A frame counts its pins. If the first throw of a
        frame is 10 (a strike), both throws of the next frame are added to it; if only the two
        throws together are 10 (a spare), the first throw of the next frame is added. The last frame
        gets no extra.""",
        """
        score([]) == 0
        score([(3, 4)]) == 7
        score([(10, 0)]) == 10
        score([(5, 5)]) == 10
        score([(10, 0), (3, 4)]) == 24
        score([(5, 5), (3, 4)]) == 20
        score([(3, 4), (5, 4)]) == 16
        score([(10, 0), (10, 0), (1, 2)]) == 36
        score([(0, 10), (4, 1)]) == 19
        score([(0, 0), (9, 0), (1, 9)]) == 19
        """,
        """
def score(frames):
    total = 0
    for i, (first, second) in enumerate(frames):
        total += first + second
        if i + 1 < len(frames):
            following = frames[i + 1]
            if first == 10:
                total += following[0] + following[1]
            elif first + second == 10:
                total += following[0]
    return total
""",
    ),
    problem(
        "water-tank",
        "introductory",
        """Write `tank(capacity, flows)` for a tank that is empty at first. Each number of `flows`
        is added to the water in it, or taken out if negative. The tank never holds more than
        `capacity` (what is too much runs over) nor less than 0. Return the pair (water in the end,
        total that ran over).""",
        """
        tank(10, []) == (0, 0)
        tank(10, [5]) == (5, 0)
        tank(10, [15]) == (10, 5)
        tank(10, [10]) == (10, 0)
        tank(10, [-3]) == (0, 0)
        tank(10, [8, 8, -4]) == (6, 6)
        tank(10, [-5, 5]) == (5, 0)
        tank(0, [1, 2]) == (0, 3)
        tank(5, [5, -5, 6]) == (5, 1)
        """,
        """
def tank(capacity, flows):
    water = 0
    lost = 0
    for flow in flows:
        water += flow
        if water > capacity:
            lost += water - capacity
            water = capacity
        if water < 0:
            water = 0
    return (water, lost)
""",
    ),
    problem(
        "elevator-floors",
        "introductory",
        """Write `travel(start, calls)` for a lift that starts on floor `start` and serves the
        calls, a list of floors, one after the other. Moving one floor takes 3 seconds, each stop
        takes 5 more. A call for the floor where the lift already is costs nothing. Return the total
        number of seconds.""",
        """
        travel(0, []) == 0
        travel(0, [1]) == 8
        travel(0, [0]) == 0
        travel(5, [2]) == 14
        travel(0, [3, 3]) == 14
        travel(0, [2, 0]) == 22
        travel(1, [1, 2, 2, 1]) == 16
        travel(-1, [1]) == 11
        travel(4, [1, 5]) == 31
        """,
        """
def travel(start, calls):
    seconds = 0
    floor = start
    for call in calls:
        if call == floor:
            continue
        seconds += 3 * abs(call - floor) + 5
        floor = call
    return seconds
""",
    ),
    problem(
        "rabbit-generations",
        "interview",
        """Write `rabbits(months, lifetime)`: in month 1 there is one new-born pair. A pair has one
        new pair in each month of its life from its third month on (the month of birth is its
        first), and it is gone after its month number `lifetime` (at least 3). Return the number of
        pairs in the given month (at least 1).""",
        """
        rabbits(1, 3) == 1
        rabbits(2, 3) == 1
        rabbits(3, 3) == 2
        rabbits(4, 3) == 1
        rabbits(5, 3) == 2
        rabbits(1, 100) == 1
        rabbits(5, 100) == 5
        rabbits(6, 100) == 8
        rabbits(5, 4) == 3
        rabbits(6, 4) == 5
        """,
        """
def rabbits(months, lifetime):
    ages = [0] * lifetime
    ages[0] = 1
    for _ in range(months - 1):
        born = sum(ages[1:lifetime - 1])
        ages = [born] + ages[:-1]
    return sum(ages)
""",
    ),
    problem(
        "card-war",
        "introductory",
        """Write `war(first, second)` for two equally long lists of card values. In each round both
        show their next card; the higher one gets the points of both cards. Equal cards go to the
        winner of the next round that has one, together with that round's cards; if there is no such
        round, nobody gets them. Return the pair of both players' points.""",
        """
        war([], []) == (0, 0)
        war([5], [3]) == (8, 0)
        war([3], [5]) == (0, 8)
        war([4], [4]) == (0, 0)
        war([4, 5], [4, 1]) == (14, 0)
        war([4, 1], [4, 5]) == (0, 14)
        war([1, 9], [2, 3]) == (12, 3)
        war([2, 3, 7], [2, 3, 1]) == (18, 0)
        war([9, 5], [1, 5]) == (10, 0)
        war([5, 9, 1], [5, 1, 2]) == (20, 3)
        """,
        """
def war(first, second):
    points = [0, 0]
    pot = 0
    for a, b in zip(first, second):
        pot += a + b
        if a > b:
            points[0] += pot
            pot = 0
        elif b > a:
            points[1] += pot
            pot = 0
    return (points[0], points[1])
""",
    ),
    problem(
        "snail-well",
        "introductory",
        """Write `days_to_climb(depth, up, down)` for a snail at the bottom of a well that is
        `depth` deep (at least 1). Each day it climbs `up`, each night it slips back `down`, but
        never below the bottom. Return on which day it reaches the top, or -1 if it never does.""",
        """
        days_to_climb(1, 1, 0) == 1
        days_to_climb(10, 3, 2) == 8
        days_to_climb(3, 3, 2) == 1
        days_to_climb(4, 3, 2) == 2
        days_to_climb(5, 3, 3) == -1
        days_to_climb(5, 2, 4) == -1
        days_to_climb(5, 5, 9) == 1
        days_to_climb(10, 4, 0) == 3
        days_to_climb(12, 4, 0) == 3
        days_to_climb(100, 10, 5) == 19
        """,
        """
def days_to_climb(depth, up, down):
    height = 0
    day = 1
    while height + up < depth:
        if up <= down:
            return -1
        height = height + up - down
        day += 1
    return day
""",
        """
def days_to_climb(depth, up, down):
    if up >= depth:
        return 1
    if up <= down:
        return -1
    gain = up - down
    rest = depth - up
    return (rest + gain - 1) // gain + 1
""",
    ),
)

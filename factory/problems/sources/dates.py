"""Problems about the calendar and the clock, without the modules that know them."""

from factory.problems.sources.source import problem

PROBLEMS = (
    problem(
        "days-in-month",
        "introductory",
        """Write `days_in_month(year, month)` that returns the number of days of a month (1 to 12).
        February has 29 days in leap years: years that 4 divides, except those that 100 divides but
        400 doesn't. Don't use any module.""",
        """
        days_in_month(2023, 1) == 31
        days_in_month(2023, 2) == 28
        days_in_month(2024, 2) == 29
        days_in_month(1900, 2) == 28
        days_in_month(2000, 2) == 29
        days_in_month(2023, 4) == 30
        days_in_month(2023, 8) == 31
        days_in_month(2023, 11) == 30
        days_in_month(2023, 12) == 31
        days_in_month(2023, 6) == 30
        days_in_month(2023, 9) == 30
        days_in_month(2023, 7) == 31
        """,
        """
def days_in_month(year, month):
    if month == 2:
        if year % 400 == 0 or (year % 4 == 0 and year % 100 != 0):
            return 29
        return 28
    if month in (4, 6, 9, 11):
        return 30
    return 31
""",
    ),
    problem(
        "day-of-year",
        "introductory",
        """Write `day_of_year(year, month, day)` that returns which day of its year a date is:
        January 1st is 1. Leap years are those that 4 divides, except those that 100 divides but 400
        doesn't. Don't use any module.""",
        """
        day_of_year(2023, 1, 1) == 1
        day_of_year(2023, 2, 1) == 32
        day_of_year(2023, 3, 1) == 60
        day_of_year(2024, 3, 1) == 61
        day_of_year(2024, 2, 29) == 60
        day_of_year(2023, 12, 31) == 365
        day_of_year(2024, 12, 31) == 366
        day_of_year(1900, 12, 31) == 365
        day_of_year(2000, 12, 31) == 366
        day_of_year(2024, 1, 31) == 31
        """,
        """
def day_of_year(year, month, day):
    lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        lengths[1] = 29
    return sum(lengths[:month - 1]) + day
""",
    ),
    problem(
        "valid-clock-time",
        "introductory",
        """Write `is_time(text)` that tells whether a text is a time of day of the form "HH:MM",
        with exactly two digits on each side, hours from 00 to 23 and minutes from 00 to 59.""",
        """
        is_time("00:00") is True
        is_time("23:59") is True
        is_time("24:00") is False
        is_time("12:60") is False
        is_time("9:30") is False
        is_time("09:3") is False
        is_time("0930") is False
        is_time("ab:cd") is False
        is_time("") is False
        is_time("12:345") is False
        is_time("12-30") is False
        is_time("12:30") is True
        is_time("a1:30") is False
        is_time("12:3b") is False
        """,
        """
def is_time(text):
    if len(text) != 5 or text[2] != ":":
        return False
    hours = text[:2]
    minutes = text[3:]
    if not hours.isdigit() or not minutes.isdigit():
        return False
    return int(hours) < 24 and int(minutes) < 60
""",
    ),
    problem(
        "add-minutes",
        "introductory",
        """Write `add_minutes(time, minutes)` that adds a number of minutes, which may be negative,
        to a time of day "HH:MM" and returns the new time in the same form. After 23:59 comes
        00:00.""",
        """
        add_minutes("10:00", 5) == "10:05"
        add_minutes("10:59", 1) == "11:00"
        add_minutes("23:59", 1) == "00:00"
        add_minutes("00:00", -1) == "23:59"
        add_minutes("12:30", 0) == "12:30"
        add_minutes("12:30", 1440) == "12:30"
        add_minutes("08:05", 70) == "09:15"
        add_minutes("01:00", -90) == "23:30"
        add_minutes("00:00", 609) == "10:09"
        """,
        """
def add_minutes(time, minutes):
    hours, start = time.split(":")
    total = (int(hours) * 60 + int(start) + minutes) % (24 * 60)
    return str(total // 60).zfill(2) + ":" + str(total % 60).zfill(2)
""",
    ),
    problem(
        "weekday-of-date",
        "interview",
        """Write `weekday(day, start)` for a month whose 1st falls on the weekday `start` (0 is
        Monday, 6 is Sunday). Return the pair (weekday of the given day, how many days with that
        weekday the month has had up to and including it).""",
        """
        weekday(1, 0) == (0, 1)
        weekday(1, 6) == (6, 1)
        weekday(7, 0) == (6, 1)
        weekday(8, 0) == (0, 2)
        weekday(15, 3) == (3, 3)
        weekday(14, 3) == (2, 2)
        weekday(31, 5) == (0, 5)
        weekday(29, 2) == (2, 5)
        weekday(28, 2) == (1, 4)
        """,
        """
def weekday(day, start):
    position = (start + day - 1) % 7
    count = (day - 1) // 7 + 1
    return (position, count)
""",
    ),
    problem(
        "next-date",
        "interview",
        """Write `next_date(year, month, day)` that returns the date of the following day as a tuple
        of three numbers. February has 29 days in years that 4 divides, except those that 100
        divides but 400 doesn't. Don't use any module.""",
        """
        next_date(2023, 1, 1) == (2023, 1, 2)
        next_date(2023, 1, 31) == (2023, 2, 1)
        next_date(2023, 12, 31) == (2024, 1, 1)
        next_date(2023, 2, 28) == (2023, 3, 1)
        next_date(2024, 2, 28) == (2024, 2, 29)
        next_date(2024, 2, 29) == (2024, 3, 1)
        next_date(1900, 2, 28) == (1900, 3, 1)
        next_date(2000, 2, 28) == (2000, 2, 29)
        next_date(2023, 4, 30) == (2023, 5, 1)
        next_date(2023, 11, 29) == (2023, 11, 30)
        next_date(2023, 11, 30) == (2023, 12, 1)
        next_date(2023, 12, 30) == (2023, 12, 31)
        """,
        """
def next_date(year, month, day):
    if month == 2:
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        last = 29 if leap else 28
    elif month in (4, 6, 9, 11):
        last = 30
    else:
        last = 31
    if day < last:
        return (year, month, day + 1)
    if month < 12:
        return (year, month + 1, 1)
    return (year + 1, 1, 1)
""",
    ),
    problem(
        "opening-hours",
        "introductory",
        """Write `is_open(opens, closes, now)` for three times of day in minutes since midnight (0
        to 1439). A shop is open from `opens` on until just before `closes`. If `closes` is smaller
        than `opens`, the shop stays open over midnight. If both are equal, it is always closed.""",
        """
        is_open(540, 1080, 540) is True
        is_open(540, 1080, 1079) is True
        is_open(540, 1080, 1080) is False
        is_open(540, 1080, 539) is False
        is_open(1200, 120, 1300) is True
        is_open(1200, 120, 0) is True
        is_open(1200, 120, 119) is True
        is_open(1200, 120, 120) is False
        is_open(1200, 120, 600) is False
        is_open(600, 600, 600) is False
        is_open(600, 600, 10) is False
        is_open(1200, 120, 1200) is True
        """,
        """
def is_open(opens, closes, now):
    if opens <= closes:
        return opens <= now < closes
    return now >= opens or now < closes
""",
    ),
    problem(
        "age-in-years",
        "introductory",
        """Write `age(born, today)` for two dates as tuples (year, month, day). Return the age in
        full years. Who is born on February 29th becomes older on March 1st in years without that
        day. If `today` lies before the birth, return -1.""",
        """
        age((2000, 5, 10), (2020, 5, 10)) == 20
        age((2000, 5, 10), (2020, 5, 9)) == 19
        age((2000, 5, 10), (2020, 4, 30)) == 19
        age((2000, 5, 10), (2020, 6, 1)) == 20
        age((2000, 5, 10), (2000, 5, 10)) == 0
        age((2000, 5, 10), (2000, 5, 9)) == -1
        age((2000, 5, 10), (1999, 12, 31)) == -1
        age((2000, 2, 29), (2001, 2, 28)) == 0
        age((2000, 2, 29), (2001, 3, 1)) == 1
        age((1990, 12, 31), (1991, 1, 1)) == 0
        """,
        """
def age(born, today):
    if today < born:
        return -1
    years = today[0] - born[0]
    if today[1:] < born[1:]:
        years -= 1
    return years
""",
    ),
    problem(
        "parking-fee",
        "introductory",
        """Write `parking_fee(minutes)`: the first 15 minutes are free. After that every started
        half hour, counted from the beginning, costs 2 coins, but a full day of 1440 minutes costs
        at most 30 coins. Longer stays pay 30 for each full day, and the rest is charged as a stay
        of its own, with its free minutes.""",
        """
        parking_fee(0) == 0
        parking_fee(15) == 0
        parking_fee(16) == 2
        parking_fee(30) == 2
        parking_fee(31) == 4
        parking_fee(60) == 4
        parking_fee(450) == 30
        parking_fee(480) == 30
        parking_fee(420) == 28
        parking_fee(1440) == 30
        parking_fee(1455) == 30
        parking_fee(1456) == 32
        parking_fee(2880) == 60
        """,
        """
def parking_fee(minutes):
    days = minutes // 1440
    rest = minutes % 1440
    fee = 0
    if rest > 15:
        started = (rest + 29) // 30
        fee = min(2 * started, 30)
    return 30 * days + fee
""",
    ),
)

"""Problems about laying out text: tables, columns, numbers in words, wrapping."""

from factory.problems.sources.source import problem

PROBLEMS = (
    problem(
        "thousands-separator",
        "introductory",
        """Write `with_separators(number)` that writes a whole number with a comma between every
        three digits, counted from the right: 1234567 becomes "1,234,567". Negative numbers have a
        minus sign in front. Do it without the formatting built into Python.""",
        """
        with_separators(0) == "0"
        with_separators(999) == "999"
        with_separators(1000) == "1,000"
        with_separators(1234567) == "1,234,567"
        with_separators(-1234) == "-1,234"
        with_separators(-999) == "-999"
        with_separators(100000) == "100,000"
        with_separators(12) == "12"
        with_separators(1000000000) == "1,000,000,000"
        """,
        """
def with_separators(number):
    digits = str(abs(number))
    groups = []
    while len(digits) > 3:
        groups.insert(0, digits[-3:])
        digits = digits[:-3]
    groups.insert(0, digits)
    text = ",".join(groups)
    if number < 0:
        text = "-" + text
    return text
""",
    ),
    problem(
        "wrap-words",
        "interview",
        """Write `wrap_words(text, width)` that breaks `text` into lines of at most `width`
        characters and returns them as a list. Words are separated by white space; within a line
        they are joined by single spaces. As many words as fit go on a line. A word longer than
        `width` gets a line of its own. An empty text has no lines.""",
        """
        wrap_words("", 5) == []
        wrap_words("one two three", 7) == ["one two", "three"]
        wrap_words("one two three", 6) == ["one", "two", "three"]
        wrap_words("one two", 100) == ["one two"]
        wrap_words("enormous a b", 3) == ["enormous", "a b"]
        wrap_words("a enormous b", 3) == ["a", "enormous", "b"]
        wrap_words("  a   b  ", 3) == ["a b"]
        wrap_words("ab cd ef", 5) == ["ab cd", "ef"]
        wrap_words("ab cd ef", 4) == ["ab", "cd", "ef"]
        """,
        """
def wrap_words(text, width):
    lines = []
    line = ""
    for word in text.split():
        if not line:
            line = word
        elif len(line) + 1 + len(word) <= width:
            line += " " + word
        else:
            lines.append(line)
            line = word
    if line:
        lines.append(line)
    return lines
""",
    ),
    problem(
        "ordinal-suffix",
        "introductory",
        """Write `ordinal(number)` that returns a positive whole number as an English ordinal: 1 is
        "1st", 2 "2nd", 3 "3rd", 4 "4th", 11, 12 and 13 are "11th", "12th" and "13th", 21 is "21st".
        Numbers whose last two digits are 11, 12 or 13 end in "th" as well.""",
        """
        ordinal(1) == "1st"
        ordinal(2) == "2nd"
        ordinal(3) == "3rd"
        ordinal(4) == "4th"
        ordinal(10) == "10th"
        ordinal(11) == "11th"
        ordinal(13) == "13th"
        ordinal(14) == "14th"
        ordinal(21) == "21st"
        ordinal(112) == "112th"
        ordinal(122) == "122nd"
        ordinal(103) == "103rd"
        ordinal(1001) == "1001st"
        """,
        """
def ordinal(number):
    if 11 <= number % 100 <= 13:
        return str(number) + "th"
    last = number % 10
    if last == 1:
        return str(number) + "st"
    if last == 2:
        return str(number) + "nd"
    if last == 3:
        return str(number) + "rd"
    return str(number) + "th"
""",
    ),
    problem(
        "human-duration",
        "introductory",
        """Write `human_duration(seconds)` that writes a number of seconds as hours, minutes and
        seconds, such as "1h 1m 1s". Parts that are zero are left out, but zero seconds altogether
        is "0s".""",
        """
        human_duration(0) == "0s"
        human_duration(1) == "1s"
        human_duration(59) == "59s"
        human_duration(60) == "1m"
        human_duration(61) == "1m 1s"
        human_duration(3599) == "59m 59s"
        human_duration(3600) == "1h"
        human_duration(3661) == "1h 1m 1s"
        human_duration(3605) == "1h 5s"
        human_duration(90000) == "25h"
        """,
        """
def human_duration(seconds):
    parts = []
    hours = seconds // 3600
    minutes = seconds % 3600 // 60
    rest = seconds % 60
    if hours > 0:
        parts.append(str(hours) + "h")
    if minutes > 0:
        parts.append(str(minutes) + "m")
    if rest > 0 or not parts:
        parts.append(str(rest) + "s")
    return " ".join(parts)
""",
    ),
    problem(
        "align-columns",
        "interview",
        """Write `align_columns(rows)` for a list of rows, each a list of strings, all rows equally
        long. Every column is padded with spaces on the right to its longest entry; the columns of a
        row are joined by " | "; spaces at the end of a line are removed. Return the list of
        lines.""",
        """
        align_columns([]) == []
        align_columns([["a"]]) == ["a"]
        align_columns([["a", "b"]]) == ["a | b"]
        align_columns([["a", "bb"], ["ccc", "d"]]) == ["a   | bb", "ccc | d"]
        align_columns([["", "x"], ["yy", ""]]) == ["   | x", "yy |"]
        align_columns([["one"], ["three"]]) == ["one", "three"]
        align_columns([["a", "b", "c"], ["aa", "b", "c"]]) == ["a  | b | c", "aa | b | c"]
        align_columns([["x", "y"], ["x", "yyy"], ["xx", "y"]]) == ["x  | y", "x  | yyy", "xx | y"]
        """,
        """
def align_columns(rows):
    if not rows:
        return []
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        lines.append(" | ".join(cells).rstrip())
    return lines
""",
    ),
    problem(
        "join-names",
        "introductory",
        """Write `join_names(names)` that joins a list of names for a sentence: no names give
        "nobody", one name itself, two "A and B", more "A, B and C".""",
        """
        join_names([]) == "nobody"
        join_names(["Ann"]) == "Ann"
        join_names(["Ann", "Bo"]) == "Ann and Bo"
        join_names(["Ann", "Bo", "Cy"]) == "Ann, Bo and Cy"
        join_names(["A", "B", "C", "D"]) == "A, B, C and D"
        join_names(["X", "X"]) == "X and X"
        join_names(["and", "and", "and"]) == "and, and and and"
        join_names(["1", "2", "3", "4", "5"]) == "1, 2, 3, 4 and 5"
        """,
        """
def join_names(names):
    if not names:
        return "nobody"
    if len(names) == 1:
        return names[0]
    return ", ".join(names[:-1]) + " and " + names[-1]
""",
    ),
    problem(
        "number-in-words",
        "interview",
        """Write `in_words(number)` that returns a whole number from 0 to 99 in English words, such
        as "seven", "thirteen", "forty", "forty-two".""",
        """
        in_words(0) == "zero"
        in_words(7) == "seven"
        in_words(10) == "ten"
        in_words(13) == "thirteen"
        in_words(19) == "nineteen"
        in_words(20) == "twenty"
        in_words(21) == "twenty-one"
        in_words(40) == "forty"
        in_words(42) == "forty-two"
        in_words(90) == "ninety"
        in_words(99) == "ninety-nine"
        """,
        """
def in_words(number):
    small = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
             "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen",
             "seventeen", "eighteen", "nineteen"]
    tens = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
    if number < 20:
        return small[number]
    word = tens[number // 10 - 2]
    if number % 10 > 0:
        word += "-" + small[number % 10]
    return word
""",
    ),
    problem(
        "text-box",
        "introductory",
        """Write `text_box(lines)` that draws a box of "*" around a list of lines: a line of stars
        above and below, and each line between "* " and " *", filled with spaces on the right so
        that all are equally long. Return the list of all lines. For no lines the box is two lines
        of four stars.""",
        """
        text_box([]) == ["****", "****"]
        text_box(["a"]) == ["*****", "* a *", "*****"]
        text_box(["ab", "c"]) == ["******", "* ab *", "* c  *", "******"]
        text_box([""]) == ["****", "*  *", "****"]
        text_box(["c", "ab"]) == ["******", "* c  *", "* ab *", "******"]
        text_box(["x y"]) == ["*******", "* x y *", "*******"]
        len(text_box(["a", "b", "c"])) == 5
        text_box(["", "ab"])[1] == "*    *"
        """,
        """
def text_box(lines):
    width = 0
    for line in lines:
        if len(line) > width:
            width = len(line)
    border = "*" * (width + 4)
    box = [border]
    for line in lines:
        box.append("* " + line + " " * (width - len(line)) + " *")
    box.append(border)
    return box
""",
    ),
    problem(
        "shorten-middle",
        "interview",
        """Write `shorten(text, limit)` that leaves a text of at most `limit` characters as it is,
        and otherwise cuts it in the middle: the first characters, then "...", then the last ones,
        with exactly `limit` characters together. If what is left beside the dots is odd, the front
        gets one character more than the back. `limit` is at least 4.""",
        """
        shorten("abcdef", 6) == "abcdef"
        shorten("abcdefg", 6) == "ab...g"
        shorten("abcdefgh", 7) == "ab...gh"
        shorten("abcdefghij", 8) == "abc...ij"
        shorten("abcdef", 4) == "a..."
        shorten("abcdef", 5) == "a...f"
        shorten("", 4) == ""
        shorten("abcd", 4) == "abcd"
        shorten("abcde", 4) == "a..."
        """,
        """
def shorten(text, limit):
    if len(text) <= limit:
        return text
    room = limit - 3
    back = room // 2
    front = room - back
    ending = text[len(text) - back:]
    return text[:front] + "..." + ending
""",
    ),
    problem(
        "title-except-small",
        "introductory",
        """Write `headline(text)` that capitalises each word of a text (words are separated by white
        space): the first letter upper case, the others lower case. The words "a", "an", "of", "the"
        and "and" stay in lower case unless they come first. Join the words with single spaces.""",
        """
        headline("the lord of the rings") == "The Lord of the Rings"
        headline("") == ""
        headline("A TALE OF TWO CITIES") == "A Tale of Two Cities"
        headline("war AND peace") == "War and Peace"
        headline("of") == "Of"
        headline("  many   spaces ") == "Many Spaces"
        headline("an end and a start") == "An End and a Start"
        headline("rings the of") == "Rings the of"
        """,
        """
def headline(text):
    small = {"a", "an", "of", "the", "and"}
    words = []
    for i, word in enumerate(text.lower().split()):
        if i == 0 or word not in small:
            word = word.capitalize()
        words.append(word)
    return " ".join(words)
""",
    ),
)

"""Problems about reading small formats: numbers, records, versions, expressions."""

from factory.problems.sources.source import problem

PROBLEMS = (
    problem(
        "parse-pairs",
        "introductory",
        """Write `parse_pairs(text)` that reads settings like "a=1; b = two;c=" into a dictionary of
        strings. Pairs are separated by semicolons; spaces around keys and values are dropped; the
        first "=" parts key from value. Pieces without "=" are skipped. If a key occurs twice, the
        last value counts.""",
        """
        parse_pairs("") == {}
        parse_pairs("a=1") == {"a": "1"}
        parse_pairs("a=1; b = two;c=") == {"a": "1", "b": "two", "c": ""}
        parse_pairs("a=b=c") == {"a": "b=c"}
        parse_pairs("a") == {}
        parse_pairs("a;b=2") == {"b": "2"}
        parse_pairs("a=1;a=2") == {"a": "2"}
        parse_pairs(";;") == {}
        parse_pairs(" key with space = v w ") == {"key with space": "v w"}
        """,
        """
def parse_pairs(text):
    settings = {}
    for piece in text.split(";"):
        if "=" not in piece:
            continue
        key, _, value = piece.partition("=")
        settings[key.strip()] = value.strip()
    return settings
""",
    ),
    problem(
        "compare-versions",
        "interview",
        """Write `compare_versions(first, second)` for versions such as "1.4.10". Compare the parts
        as numbers from left to right; missing parts count as 0. Return -1 if the first is older, 1
        if it is newer, 0 if they are equal.""",
        """
        compare_versions("1.2", "1.10") == -1
        compare_versions("1.10", "1.2") == 1
        compare_versions("1.0", "1") == 0
        compare_versions("1", "1.0.0") == 0
        compare_versions("1", "1.0.1") == -1
        compare_versions("1.0.1", "1") == 1
        compare_versions("2", "10") == -1
        compare_versions("1.2.3", "1.2.3") == 0
        compare_versions("1.02", "1.2") == 0
        compare_versions("2.0", "1.9.9") == 1
        """,
        """
def compare_versions(first, second):
    left = [int(part) for part in first.split(".")]
    right = [int(part) for part in second.split(".")]
    for i in range(max(len(left), len(right))):
        a = left[i] if i < len(left) else 0
        b = right[i] if i < len(right) else 0
        if a < b:
            return -1
        if a > b:
            return 1
    return 0
""",
    ),
    problem(
        "roman-numerals",
        "introductory",
        """Write `roman_value(text)` that returns the value of a Roman numeral in capital letters
        (I=1, V=5, X=10, L=50, C=100, D=500, M=1000). A letter that stands directly before one of
        greater value is subtracted, every other one is added. The empty string has the value 0.""",
        """
        roman_value("") == 0
        roman_value("III") == 3
        roman_value("IV") == 4
        roman_value("VI") == 6
        roman_value("IX") == 9
        roman_value("XLII") == 42
        roman_value("XC") == 90
        roman_value("CD") == 400
        roman_value("MCMXCIV") == 1994
        roman_value("MDCLXVI") == 1666
        """,
        """
def roman_value(text):
    values = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
    total = 0
    for i in range(len(text)):
        value = values[text[i]]
        if i + 1 < len(text) and values[text[i + 1]] > value:
            total -= value
        else:
            total += value
    return total
""",
    ),
    problem(
        "run-length-decode",
        "introductory",
        """Write `expand(code)` that decodes a string in which a number before a character tells how
        often it is repeated: "3a2bc" becomes "aaabbc". A character without a number stands for
        itself once. Numbers may have several digits; the number 0 drops the character. Digits at
        the very end are ignored.""",
        """
        expand("") == ""
        expand("abc") == "abc"
        expand("3a2bc") == "aaabbc"
        expand("12x") == "xxxxxxxxxxxx"
        expand("0a") == ""
        expand("a0bc") == "ac"
        expand("2 3-") == "  ---"
        expand("a2") == "a"
        expand("10a1b") == "aaaaaaaaaab"
        """,
        """
def expand(code):
    result = ""
    number = ""
    for letter in code:
        if letter.isdigit():
            number += letter
        else:
            times = int(number) if number else 1
            result += letter * times
            number = ""
    return result
""",
    ),
    problem(
        "split-csv-line",
        "interview",
        """Write `split_csv(line)` that splits a line at its commas into a list of fields. A part of
        the line between two double quotes may contain commas; the quotes themselves are dropped.
        Two double quotes in a row inside a quoted part stand for one double quote. The empty line
        has one empty field.""",
        '''
        split_csv("") == [""]
        split_csv("a,b") == ["a", "b"]
        split_csv("a,,b") == ["a", "", "b"]
        split_csv("a,") == ["a", ""]
        split_csv('"a,b",c') == ["a,b", "c"]
        split_csv('"say ""hi""",x') == ['say "hi"', "x"]
        split_csv('""') == [""]
        split_csv('x,"y"') == ["x", "y"]
        split_csv('"a""b"') == ['a"b']
        split_csv('"a","b,c"') == ["a", "b,c"]
        ''',
        """
def split_csv(line):
    fields = []
    field = ""
    quoted = False
    i = 0
    while i < len(line):
        letter = line[i]
        if letter == '"':
            if quoted and line[i + 1:i + 2] == '"':
                field += '"'
                i += 1
            else:
                quoted = not quoted
        elif letter == "," and not quoted:
            fields.append(field)
            field = ""
        else:
            field += letter
        i += 1
    fields.append(field)
    return fields
""",
    ),
    problem(
        "sum-numbers-in-text",
        "introductory",
        """Write `sum_in_text(text)` that adds up all whole numbers that stand in a text. A number
        is a longest run of digits; a "-" directly before it makes it negative, whatever stands
        before that. Without numbers the sum is 0.""",
        """
        sum_in_text("") == 0
        sum_in_text("none") == 0
        sum_in_text("3 apples and 4 pears") == 7
        sum_in_text("12") == 12
        sum_in_text("a1b22c333") == 356
        sum_in_text("-5") == -5
        sum_in_text("5-") == 5
        sum_in_text("7-2") == 5
        sum_in_text("- 5") == 5
        sum_in_text("--4") == -4
        sum_in_text("x-3y4") == 1
        """,
        """
def sum_in_text(text):
    total = 0
    i = 0
    while i < len(text):
        if text[i].isdigit():
            start = i
            while i < len(text) and text[i].isdigit():
                i += 1
            number = int(text[start:i])
            if start > 0 and text[start - 1] == "-":
                number = -number
            total += number
        else:
            i += 1
    return total
""",
    ),
    problem(
        "parse-page-ranges",
        "introductory",
        """Write `pages(text)` that reads page numbers like "1-3,5,7-8" into the sorted list [1, 2,
        3, 5, 7, 8] without duplicates. Both ends of a range count. A range whose end is smaller
        than its start is empty. The empty text gives the empty list.""",
        """
        pages("") == []
        pages("4") == [4]
        pages("1-3,5,7-8") == [1, 2, 3, 5, 7, 8]
        pages("3-3") == [3]
        pages("5-4") == []
        pages("9,1") == [1, 9]
        pages("1-4,3-6") == [1, 2, 3, 4, 5, 6]
        pages("2,2,2") == [2]
        pages("10-12,9") == [9, 10, 11, 12]
        """,
        """
def pages(text):
    found = set()
    if not text:
        return []
    for piece in text.split(","):
        if "-" in piece:
            start, end = piece.split("-")
            for page in range(int(start), int(end) + 1):
                found.add(page)
        else:
            found.add(int(piece))
    return sorted(found)
""",
    ),
    problem(
        "read-duration",
        "introductory",
        """Write `to_minutes(text)` that reads durations such as "2h30m", "45m" or "3h" and returns
        the number of minutes. The hours come before the minutes; either part may be missing, and
        the empty text is 0 minutes. If the text has any other form, return -1.""",
        """
        to_minutes("2h30m") == 150
        to_minutes("45m") == 45
        to_minutes("3h") == 180
        to_minutes("") == 0
        to_minutes("0h0m") == 0
        to_minutes("5") == -1
        to_minutes("5x") == -1
        to_minutes("h") == -1
        to_minutes("1h2") == -1
        to_minutes("90m") == 90
        to_minutes("30m2h") == -1
        to_minutes("1h1h") == -1
        """,
        """
def to_minutes(text):
    total = 0
    number = ""
    units = "hm"
    for letter in text:
        if letter.isdigit():
            number += letter
        elif letter in units and number:
            if letter == "h":
                total += 60 * int(number)
                units = "m"
            else:
                total += int(number)
                units = ""
            number = ""
        else:
            return -1
    if number:
        return -1
    return total
""",
    ),
    problem(
        "normalise-path",
        "interview",
        """Write `simplify(path)` for an absolute path such as "/a/./b/../c". Empty parts and "."
        are dropped, ".." removes the part before it (at the root it does nothing). The result
        begins with "/" and has no "/" at the end, except for the root itself, which is "/".""",
        """
        simplify("/") == "/"
        simplify("/a/./b/../c") == "/a/c"
        simplify("/a//b/") == "/a/b"
        simplify("/..") == "/"
        simplify("/../a") == "/a"
        simplify("/a/..") == "/"
        simplify("/a/b/../..") == "/"
        simplify("/.../x") == "/.../x"
        simplify("/a/b/c") == "/a/b/c"
        simplify("/a/../../b") == "/b"
        """,
        """
def simplify(path):
    parts = []
    for part in path.split("/"):
        if part == "" or part == ".":
            continue
        if part == "..":
            if parts:
                parts.pop()
        else:
            parts.append(part)
    return "/" + "/".join(parts)
""",
    ),
    problem(
        "valid-identifier",
        "introductory",
        """Write `is_name(text)` that tells whether a text is a name: it begins with a letter a-z,
        in either case, or an underscore, goes on with such letters, underscores and digits 0-9, and
        has from 1 to 12 characters.""",
        """
        is_name("a") is True
        is_name("") is False
        is_name("_") is True
        is_name("9a") is False
        is_name("a9") is True
        is_name("snake_case") is True
        is_name("abcdefghijkl") is True
        is_name("abcdefghijklm") is False
        is_name("with space") is False
        is_name("Zz") is True
        is_name("a-b") is False
        is_name("x0") is True
        is_name("A[") is False
        is_name("@b") is False
        """,
        """
def is_name(text):
    if not 1 <= len(text) <= 12:
        return False
    for i, letter in enumerate(text):
        if "a" <= letter.lower() <= "z" or letter == "_":
            continue
        if i > 0 and "0" <= letter <= "9":
            continue
        return False
    return True
""",
    ),
    problem(
        "hex-colour",
        "introductory",
        """Write `read_colour(text)` that reads a colour like "#1a2B3c" as the tuple of its three
        parts (red, green, blue) from 0 to 255. The short form "#abc" means "#aabbcc". For anything
        else return None.""",
        """
        read_colour("#000000") == (0, 0, 0)
        read_colour("#ffffff") == (255, 255, 255)
        read_colour("#1a2B3c") == (26, 43, 60)
        read_colour("#abc") == (170, 187, 204)
        read_colour("abc") is None
        read_colour("#ab") is None
        read_colour("#abcd") is None
        read_colour("") is None
        read_colour("#ggg") is None
        read_colour("#0f0") == (0, 255, 0)
        read_colour("#FF000") is None
        """,
        """
def read_colour(text):
    if not text.startswith("#"):
        return None
    digits = text[1:].lower()
    if len(digits) == 3:
        digits = "".join(digit * 2 for digit in digits)
    if len(digits) != 6:
        return None
    for digit in digits:
        if digit not in "0123456789abcdef":
            return None
    return (int(digits[0:2], 16), int(digits[2:4], 16), int(digits[4:6], 16))
""",
    ),
)

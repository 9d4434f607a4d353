"""Problems about strings: counting, comparing, taking apart, putting together."""

from factory.problems.sources.source import problem

PROBLEMS = (
    problem(
        "count-vowel-runs",
        "introductory",
        """Write a function `count_vowel_runs(text)` that counts the groups of neighbouring vowels
        (a, e, i, o, u, in either case) in a string. "queue" has one group, "banana" has three.""",
        """
        count_vowel_runs("") == 0
        count_vowel_runs("rhythm") == 0
        count_vowel_runs("queue") == 1
        count_vowel_runs("banana") == 3
        count_vowel_runs("AEiou") == 1
        count_vowel_runs("a b") == 1
        count_vowel_runs("a a") == 2
        count_vowel_runs("cooperation") == 4
        count_vowel_runs("xa") == 1
        count_vowel_runs("ax") == 1
        """,
        """
def count_vowel_runs(text):
    runs = 0
    inside = False
    for letter in text.lower():
        if letter in "aeiou":
            if not inside:
                runs += 1
            inside = True
        else:
            inside = False
    return runs
""",
    ),
    problem(
        "caesar-shift",
        "introductory",
        """Write `caesar_shift(text, amount)` that moves every letter a-z and A-Z forward by
        `amount` places in the alphabet, from z on to a, and keeps its case. All other characters
        stay. `amount` may be negative or larger than 26.""",
        """
        caesar_shift("abc", 1) == "bcd"
        caesar_shift("xyz", 3) == "abc"
        caesar_shift("Hello, World!", 5) == "Mjqqt, Btwqi!"
        caesar_shift("abc", -1) == "zab"
        caesar_shift("abc", 27) == "bcd"
        caesar_shift("", 4) == ""
        caesar_shift("123", 4) == "123"
        caesar_shift("Zz", 1) == "Aa"
        caesar_shift("Az[`{@", 0) == "Az[`{@"
        caesar_shift("AZaz", 13) == "NMnm"
        """,
        """
def caesar_shift(text, amount):
    shifted = []
    for letter in text:
        if "a" <= letter <= "z":
            shifted.append(chr((ord(letter) - ord("a") + amount) % 26 + ord("a")))
        elif "A" <= letter <= "Z":
            shifted.append(chr((ord(letter) - ord("A") + amount) % 26 + ord("A")))
        else:
            shifted.append(letter)
    return "".join(shifted)
""",
    ),
    problem(
        "common-prefix",
        "introductory",
        """Write `common_prefix(words)` that returns the longest string with which every word of a
        list starts. For an empty list return the empty string.""",
        """
        common_prefix([]) == ""
        common_prefix(["tea"]) == "tea"
        common_prefix(["tea", "team", "teapot"]) == "tea"
        common_prefix(["team", "tea"]) == "tea"
        common_prefix(["cat", "dog"]) == ""
        common_prefix(["same", "same"]) == "same"
        common_prefix(["", "abc"]) == ""
        common_prefix(["abx", "aby", "acx"]) == "a"
        common_prefix(["abcx", "abdx"]) == "ab"
        """,
        """
def common_prefix(words):
    if not words:
        return ""
    shortest = min(len(word) for word in words)
    for i in range(shortest):
        for word in words:
            if word[i] != words[0][i]:
                return words[0][:i]
    return words[0][:shortest]
""",
        """
def common_prefix(words):
    if not words:
        return ""
    prefix = words[0]
    for word in words[1:]:
        while not word.startswith(prefix):
            prefix = prefix[:-1]
    return prefix
""",
    ),
    problem(
        "collapse-repeats",
        "introductory",
        """Write `collapse_repeats(text, most)` that shortens every run of one repeated character to
        at most `most` characters (at least 1). With most=2, "aaabccccd" becomes "aabccd".""",
        """
        collapse_repeats("aaabccccd", 2) == "aabccd"
        collapse_repeats("aaa", 1) == "a"
        collapse_repeats("", 3) == ""
        collapse_repeats("abc", 1) == "abc"
        collapse_repeats("aaaa", 4) == "aaaa"
        collapse_repeats("aaaaa", 4) == "aaaa"
        collapse_repeats("abab", 1) == "abab"
        collapse_repeats("aabbaabb", 1) == "abab"
        collapse_repeats("zz", 3) == "zz"
        """,
        """
def collapse_repeats(text, most):
    kept = []
    run = 0
    previous = None
    for letter in text:
        if letter == previous:
            run += 1
        else:
            run = 1
        if run <= most:
            kept.append(letter)
        previous = letter
    return "".join(kept)
""",
    ),
    problem(
        "missing-letters",
        "introductory",
        """Write `missing_letters(text)` that returns, as one string in alphabetical order, the
        lower-case letters a to z that do not occur in `text`, ignoring case. If all occur, the
        result is the empty string.""",
        """
        missing_letters("abcdefghijklmnopqrstuvwxyz") == ""
        missing_letters("") == "abcdefghijklmnopqrstuvwxyz"
        missing_letters("ABCDEFGHIJKLM") == "nopqrstuvwxyz"
        missing_letters("bcdefghijklmnopqrstuvwxyz") == "a"
        missing_letters("abcdefghijklmnopqrstuvwxy") == "z"
        missing_letters("The quick brown fox jumps over the lazy dog") == ""
        missing_letters("The quick brown fox jumps over the dog") == "alyz"
        missing_letters("acegikmoqsuwy") == "bdfhjlnprtvxz"
        """,
        """
def missing_letters(text):
    present = set(text.lower())
    missing = ""
    for code in range(ord("a"), ord("z") + 1):
        if chr(code) not in present:
            missing += chr(code)
    return missing
""",
    ),
    problem(
        "rotate-word",
        "introductory",
        """Write `is_rotation(first, second)` that tells whether `second` is `first` with some
        number of characters moved from its front to its end (none included). "abcd" and "cdab" are
        rotations of one another. Two empty strings are, too.""",
        """
        is_rotation("abcd", "cdab") is True
        is_rotation("abcd", "abcd") is True
        is_rotation("abcd", "acbd") is False
        is_rotation("", "") is True
        is_rotation("a", "") is False
        is_rotation("aab", "aba") is True
        is_rotation("ab", "abab") is False
        is_rotation("abab", "ab") is False
        is_rotation("xyz", "zxy") is True
        """,
        """
def is_rotation(first, second):
    if len(first) != len(second):
        return False
    return second in first + first
""",
        """
def is_rotation(first, second):
    if len(first) != len(second):
        return False
    if first == second:
        return True
    for i in range(1, len(first)):
        if first[i:] + first[:i] == second:
            return True
    return False
""",
    ),
    problem(
        "mask-digits",
        "introductory",
        """Write `mask_digits(text, visible)` that replaces every digit of `text` with "*", except
        for the last `visible` digits. Other characters stay as they are.""",
        """
        mask_digits("1234-5678", 4) == "****-5678"
        mask_digits("1234", 0) == "****"
        mask_digits("1234", 4) == "1234"
        mask_digits("12", 5) == "12"
        mask_digits("", 2) == ""
        mask_digits("no digits", 2) == "no digits"
        mask_digits("a1b2c3", 1) == "a*b*c3"
        mask_digits("9-8-7", 2) == "*-8-7"
        """,
        """
def mask_digits(text, visible):
    total = sum(1 for letter in text if letter.isdigit())
    seen = 0
    masked = []
    for letter in text:
        if letter.isdigit():
            seen += 1
            if seen <= total - visible:
                masked.append("*")
                continue
        masked.append(letter)
    return "".join(masked)
""",
    ),
    problem(
        "snake-from-camel",
        "introductory",
        """Write `snake_from_camel(name)` that turns a name like "maxRetryCount" into
        "max_retry_count": every upper-case letter becomes its lower-case form with an underscore
        before it, but there is no underscore at the very start.""",
        """
        snake_from_camel("maxRetryCount") == "max_retry_count"
        snake_from_camel("MaxRetry") == "max_retry"
        snake_from_camel("plain") == "plain"
        snake_from_camel("") == ""
        snake_from_camel("A") == "a"
        snake_from_camel("aB") == "a_b"
        snake_from_camel("AB") == "a_b"
        snake_from_camel("x2Y") == "x2_y"
        """,
        """
def snake_from_camel(name):
    parts = []
    for i, letter in enumerate(name):
        if letter.isupper():
            if i > 0:
                parts.append("_")
            parts.append(letter.lower())
        else:
            parts.append(letter)
    return "".join(parts)
""",
    ),
    problem(
        "longest-same-run",
        "introductory",
        """Write `longest_run(text)` that returns the pair (character, length) of the longest run of
        one character in `text`. If several runs have the same length, the first counts. For an
        empty string return ("", 0).""",
        """
        longest_run("") == ("", 0)
        longest_run("a") == ("a", 1)
        longest_run("abbbcc") == ("b", 3)
        longest_run("aabb") == ("a", 2)
        longest_run("abcc") == ("c", 2)
        longest_run("aabaaa") == ("a", 3)
        longest_run("abc") == ("a", 1)
        longest_run("xxyyyxx") == ("y", 3)
        longest_run("zzzz") == ("z", 4)
        """,
        """
def longest_run(text):
    best = ("", 0)
    start = 0
    for i in range(len(text)):
        if text[i] != text[start]:
            start = i
        length = i - start + 1
        if length > best[1]:
            best = (text[i], length)
    return best
""",
    ),
    problem(
        "palindrome-letters",
        "introductory",
        """Write `is_letter_palindrome(text)` that tells whether the letters of `text` read the same
        in both directions. Case does not matter, and everything that is not a letter is skipped. A
        text without letters counts as a palindrome.""",
        """
        is_letter_palindrome("Never odd, or even.") is True
        is_letter_palindrome("Not this one") is False
        is_letter_palindrome("") is True
        is_letter_palindrome("12 34") is True
        is_letter_palindrome("1a2b1") is False
        is_letter_palindrome("ab") is False
        is_letter_palindrome("aBa") is True
        is_letter_palindrome("a1b2a3") is True
        is_letter_palindrome("abca") is False
        is_letter_palindrome("abab") is False
        """,
        """
def is_letter_palindrome(text):
    left = 0
    right = len(text) - 1
    while left < right:
        if not text[left].isalpha():
            left += 1
        elif not text[right].isalpha():
            right -= 1
        elif text[left].lower() != text[right].lower():
            return False
        else:
            left += 1
            right -= 1
    return True
""",
        """
def is_letter_palindrome(text):
    letters = [letter.lower() for letter in text if letter.isalpha()]
    return letters == letters[::-1]
""",
    ),
    problem(
        "interleave-strings",
        "introductory",
        """Write `interleave(first, second)` that takes characters in turn from two strings,
        beginning with `first`. When one string is used up, the rest of the other follows.""",
        """
        interleave("ace", "bdf") == "abcdef"
        interleave("a", "bcd") == "abcd"
        interleave("abcd", "x") == "axbcd"
        interleave("", "") == ""
        interleave("abc", "") == "abc"
        interleave("", "abc") == "abc"
        interleave("12", "34") == "1324"
        interleave("aa", "bbbb") == "ababbb"
        """,
        """
def interleave(first, second):
    mixed = ""
    for i in range(max(len(first), len(second))):
        if i < len(first):
            mixed += first[i]
        if i < len(second):
            mixed += second[i]
    return mixed
""",
    ),
    problem(
        "letter-distance",
        "introductory",
        """Write `letter_distance(first, second)` for two strings of lower-case letters. It returns
        the number of letters that would have to be removed from both together so that each letter
        occurs equally often in the two.""",
        """
        letter_distance("", "") == 0
        letter_distance("abc", "abc") == 0
        letter_distance("abc", "cab") == 0
        letter_distance("abc", "") == 3
        letter_distance("", "xy") == 2
        letter_distance("aab", "abb") == 2
        letter_distance("abcd", "cdef") == 4
        letter_distance("aaaa", "a") == 3
        letter_distance("a", "aaaa") == 3
        """,
        """
def letter_distance(first, second):
    distance = 0
    for letter in set(first + second):
        distance += abs(first.count(letter) - second.count(letter))
    return distance
""",
    ),
    problem(
        "swap-halves",
        "introductory",
        """Write `swap_halves(text)` that exchanges the first and the second half of a string. If
        its length is odd, the middle character stays in the middle.""",
        """
        swap_halves("abcd") == "cdab"
        swap_halves("abcde") == "decab"
        swap_halves("") == ""
        swap_halves("a") == "a"
        swap_halves("ab") == "ba"
        swap_halves("abc") == "cba"
        swap_halves("123456") == "456123"
        swap_halves("1234567") == "5674123"
        """,
        """
def swap_halves(text):
    half = len(text) // 2
    first = text[:half]
    second = text[len(text) - half:]
    middle = text[half:len(text) - half]
    return second + middle + first
""",
    ),
    problem(
        "subsequence-of-any",
        "interview",
        """Write `is_subsequence_of_any(word, texts)` that returns the index of the first text in
        the list `texts` that contains all characters of `word` in the same order, not necessarily
        next to one another; -1 if there is none. The empty word is contained in every text.""",
        """
        is_subsequence_of_any("ace", ["abcde"]) == 0
        is_subsequence_of_any("aec", ["abcde"]) == -1
        is_subsequence_of_any("", ["x"]) == 0
        is_subsequence_of_any("", []) == -1
        is_subsequence_of_any("ab", ["ba", "aXb", "ab"]) == 1
        is_subsequence_of_any("aa", ["a", "aba"]) == 1
        is_subsequence_of_any("abc", ["ab", "abd", "xabc"]) == 2
        is_subsequence_of_any("abc", ["ab"]) == -1
        is_subsequence_of_any("b", ["aab"]) == 0
        """,
        """
def is_subsequence_of_any(word, texts):
    for index, text in enumerate(texts):
        found = 0
        for letter in text:
            if found < len(word) and letter == word[found]:
                found += 1
        if found == len(word):
            return index
    return -1
""",
    ),
    problem(
        "split-at-sizes",
        "introductory",
        """Write `split_at_sizes(text, sizes)` that cuts `text` from the left into pieces with the
        given sizes and returns the list of pieces. What is left over after the last size becomes
        one more piece, unless it is empty. If the text is too short, the pieces are shorter or
        empty.""",
        """
        split_at_sizes("abcdef", [2, 3]) == ["ab", "cde", "f"]
        split_at_sizes("abcdef", [2, 4]) == ["ab", "cdef"]
        split_at_sizes("abc", []) == ["abc"]
        split_at_sizes("", []) == []
        split_at_sizes("", [1]) == [""]
        split_at_sizes("abc", [2, 2, 2]) == ["ab", "c", ""]
        split_at_sizes("abc", [0, 1]) == ["", "a", "bc"]
        split_at_sizes("abcd", [1, 1, 1]) == ["a", "b", "c", "d"]
        """,
        """
def split_at_sizes(text, sizes):
    pieces = []
    start = 0
    for size in sizes:
        pieces.append(text[start:start + size])
        start += size
    if start < len(text):
        pieces.append(text[start:])
    return pieces
""",
    ),
)

"""Problems about dictionaries and sets: counting, grouping, merging, looking up."""

from factory.problems.sources.source import problem

PROBLEMS = (
    problem(
        "most-common-word",
        "introductory",
        """Write `most_common(words)` that returns the word that occurs most often in a list. Of
        words that occur equally often, return the one that comes first in alphabetical order. For
        an empty list return None.""",
        """
        most_common([]) is None
        most_common(["a"]) == "a"
        most_common(["b", "a", "b"]) == "b"
        most_common(["b", "a"]) == "a"
        most_common(["a", "b"]) == "a"
        most_common(["c", "b", "c", "b", "a"]) == "b"
        most_common(["x", "y", "y", "x", "y"]) == "y"
        most_common(["b", "b", "a", "a", "c", "c", "c"]) == "c"
        """,
        """
def most_common(words):
    counts = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    best = None
    for word in sorted(counts):
        if best is None or counts[word] > counts[best]:
            best = word
    return best
""",
    ),
    problem(
        "invert-mapping",
        "introductory",
        """Write `invert(mapping)` that turns a dictionary around: each value becomes a key, and its
        value is the sorted list of all keys that had it.""",
        """
        invert({}) == {}
        invert({"a": 1}) == {1: ["a"]}
        invert({"a": 1, "b": 2}) == {1: ["a"], 2: ["b"]}
        invert({"b": 1, "a": 1}) == {1: ["a", "b"]}
        invert({"c": 0, "a": 0, "b": 5}) == {0: ["a", "c"], 5: ["b"]}
        invert({3: "x", 2: "x", 1: "y"}) == {"x": [2, 3], "y": [1]}
        m = {"a": 1}; invert(m); assert m == {"a": 1}
        invert({2: 1, 1: 1, 3: 1}) == {1: [1, 2, 3]}
        """,
        """
def invert(mapping):
    result = {}
    for key, value in mapping.items():
        if value not in result:
            result[value] = []
        result[value].append(key)
    for keys in result.values():
        keys.sort()
    return result
""",
    ),
    problem(
        "merge-stock",
        "introductory",
        """Write `merge_stock(first, second)` for two dictionaries from product to number of pieces.
        The result is a new dictionary with the sums; products whose sum is zero or less are left
        out. A product that stands in one dictionary only counts as zero in the other.""",
        """
        merge_stock({}, {}) == {}
        merge_stock({"a": 1}, {"a": 2}) == {"a": 3}
        merge_stock({"a": 1}, {"b": 2}) == {"a": 1, "b": 2}
        merge_stock({"a": 1}, {"a": -1}) == {}
        merge_stock({"a": 1}, {"a": -3}) == {}
        merge_stock({"a": -1, "b": 4}, {}) == {"b": 4}
        merge_stock({}, {"a": 0, "b": 1}) == {"b": 1}
        merge_stock({"a": 5, "b": 1}, {"b": 1, "c": 2}) == {"a": 5, "b": 2, "c": 2}
        x = {"a": 1}; merge_stock(x, {"a": 1}); assert x == {"a": 1}
        """,
        """
def merge_stock(first, second):
    total = dict(first)
    for product, pieces in second.items():
        total[product] = total.get(product, 0) + pieces
    return {product: pieces for product, pieces in total.items() if pieces > 0}
""",
    ),
    problem(
        "group-anagrams",
        "interview",
        """Write `anagram_groups(words)` that puts words made of the same letters (equally often)
        into one group. Return the list of groups with at least two words, in the order in which
        their first words occur; inside a group the words keep their order. A word that occurs twice
        is two words.""",
        """
        anagram_groups([]) == []
        anagram_groups(["a", "b"]) == []
        anagram_groups(["tea", "eat", "tan"]) == [["tea", "eat"]]
        anagram_groups(["ab", "cd", "dc", "ba"]) == [["ab", "ba"], ["cd", "dc"]]
        anagram_groups(["x", "x"]) == [["x", "x"]]
        anagram_groups(["aab", "abb"]) == []
        anagram_groups(["abc", "bca", "cab", "zz"]) == [["abc", "bca", "cab"]]
        anagram_groups(["q", "ba", "ab"]) == [["ba", "ab"]]
        """,
        """
def anagram_groups(words):
    groups = {}
    for word in words:
        key = "".join(sorted(word))
        groups.setdefault(key, []).append(word)
    return [group for group in groups.values() if len(group) > 1]
""",
    ),
    problem(
        "first-unique",
        "introductory",
        """Write `first_unique(text)` that returns the position of the first character that occurs
        exactly once in `text`, or -1 if there is none.""",
        """
        first_unique("") == -1
        first_unique("a") == 0
        first_unique("aa") == -1
        first_unique("aab") == 2
        first_unique("swiss") == 1
        first_unique("abcabd") == 2
        first_unique("abab") == -1
        first_unique("aaab") == 3
        first_unique("xaax") == -1
        """,
        """
def first_unique(text):
    counts = {}
    for letter in text:
        counts[letter] = counts.get(letter, 0) + 1
    for i, letter in enumerate(text):
        if counts[letter] == 1:
            return i
    return -1
""",
        """
def first_unique(text):
    for i in range(len(text)):
        if text[i] not in text[:i] + text[i + 1:]:
            return i
    return -1
""",
    ),
    problem(
        "flatten-keys",
        "interview",
        """Write `flatten(tree)` for a dictionary whose values are numbers or again such
        dictionaries. The result is a flat dictionary whose keys are the keys on the way to each
        number, joined by dots: {"a": {"b": 1}} becomes {"a.b": 1}. Empty dictionaries leave
        nothing.""",
        """
        flatten({}) == {}
        flatten({"a": 1}) == {"a": 1}
        flatten({"a": {"b": 1}}) == {"a.b": 1}
        flatten({"a": {"b": {"c": 3}}, "d": 4}) == {"a.b.c": 3, "d": 4}
        flatten({"a": {}}) == {}
        flatten({"a": {"x": 1, "y": 2}}) == {"a.x": 1, "a.y": 2}
        flatten({"a": {"b": {}}, "c": 0}) == {"c": 0}
        flatten({"p": {"q": 1}, "r": {"q": 2}}) == {"p.q": 1, "r.q": 2}
        """,
        """
def flatten(tree):
    flat = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            for inner, number in flatten(value).items():
                flat[key + "." + inner] = number
        else:
            flat[key] = value
    return flat
""",
    ),
    problem(
        "votes-majority",
        "introductory",
        """Write `winner(votes)` that returns the name which has more than half of all votes in a
        list of names, or None if nobody has.""",
        """
        winner([]) is None
        winner(["a"]) == "a"
        winner(["a", "b"]) is None
        winner(["a", "b", "a"]) == "a"
        winner(["a", "a", "b", "b"]) is None
        winner(["b", "a", "b", "b"]) == "b"
        winner(["a", "b", "c"]) is None
        winner(["c", "a", "c", "b", "c"]) == "c"
        winner(["c", "a", "c", "b"]) is None
        """,
        """
def winner(votes):
    counts = {}
    for name in votes:
        counts[name] = counts.get(name, 0) + 1
        if counts[name] > len(votes) // 2:
            return name
    return None
""",
    ),
    problem(
        "average-by-group",
        "introductory",
        """Write `averages(records)` for a list of pairs (name, value). It returns a dictionary from
        each name to the average of its values. Values of None are not counted; a name with no other
        values has the average None.""",
        """
        averages([]) == {}
        averages([("a", 2)]) == {"a": 2.0}
        averages([("a", 1), ("a", 2)]) == {"a": 1.5}
        averages([("a", 1), ("b", 5), ("a", 3)]) == {"a": 2.0, "b": 5.0}
        averages([("a", None)]) == {"a": None}
        averages([("a", None), ("a", 4)]) == {"a": 4.0}
        averages([("a", 0), ("a", 0)]) == {"a": 0.0}
        averages([("b", 3), ("b", None), ("b", -3)]) == {"b": 0.0}
        averages([("a", 1), ("a", 2), ("a", 6)]) == {"a": 3.0}
        """,
        """
def averages(records):
    sums = {}
    counts = {}
    for name, value in records:
        sums.setdefault(name, 0)
        counts.setdefault(name, 0)
        if value is not None:
            sums[name] += value
            counts[name] += 1
    result = {}
    for name in sums:
        if counts[name] > 0:
            result[name] = sums[name] / counts[name]
        else:
            result[name] = None
    return result
""",
    ),
    problem(
        "mutual-friends",
        "interview",
        """Write `mutual(follows)` for a dictionary from a name to the list of names that it
        follows. Return the sorted list of pairs (a, b), a before b in alphabetical order, of two
        different names that follow each other. Names that are followed need not be keys
        themselves.""",
        """
        mutual({}) == []
        mutual({"a": ["b"]}) == []
        mutual({"a": ["b"], "b": ["a"]}) == [("a", "b")]
        mutual({"b": ["a"], "a": ["b"]}) == [("a", "b")]
        mutual({"a": ["a"]}) == []
        mutual({"a": ["b", "c"], "b": ["c"], "c": ["a", "b"]}) == [("a", "c"), ("b", "c")]
        mutual({"a": ["b"], "b": ["c"], "c": ["a"]}) == []
        mutual({"z": ["y"], "y": ["z"], "x": ["y"]}) == [("y", "z")]
        mutual({"c": ["d"], "d": ["c"], "b": ["a"], "a": ["b"]}) == [("a", "b"), ("c", "d")]
        """,
        """
def mutual(follows):
    pairs = []
    for first in follows:
        for second in follows[first]:
            if first < second and first in follows.get(second, []):
                pairs.append((first, second))
    return sorted(pairs)
""",
    ),
    problem(
        "set-similarity",
        "introductory",
        """Write `similarity(first, second)` that returns, for two lists, the number of different
        items that occur in both divided by the number of different items that occur in at least one
        of them. Two empty lists have the similarity 1.0.""",
        """
        similarity([], []) == 1.0
        similarity([1], []) == 0.0
        similarity([1, 2], [2, 1]) == 1.0
        similarity([1, 2], [2, 3]) == 1 / 3
        similarity([1, 1, 2], [2]) == 0.5
        similarity([1], [2]) == 0.0
        similarity([1, 2, 3, 4], [3, 4, 5]) == 0.4
        similarity([], [5]) == 0.0
        """,
        """
def similarity(first, second):
    either = set(first) | set(second)
    both = set(first) & set(second)
    if not either:
        return 1.0
    return len(both) / len(either)
""",
    ),
)

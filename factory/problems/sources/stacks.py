"""Problems about stacks and queues: brackets, undo, calculators, waiting lines."""

from factory.problems.sources.source import problem

PROBLEMS = (
    problem(
        "balanced-brackets",
        "introductory",
        """Write `balanced(text)` that tells whether the brackets ( ), [ ] and { } in a text are
        closed in the right order. All other characters are skipped.""",
        """
        balanced("") is True
        balanced("()") is True
        balanced("(") is False
        balanced(")") is False
        balanced("([{}])") is True
        balanced("([)]") is False
        balanced("a(b)c") is True
        balanced("(]") is False
        balanced("()[]{}") is True
        balanced("())(") is False
        balanced("{[}") is False
        """,
        """
def balanced(text):
    pairs = {")": "(", "]": "[", "}": "{"}
    stack = []
    for letter in text:
        if letter in "([{":
            stack.append(letter)
        elif letter in pairs:
            if not stack or stack.pop() != pairs[letter]:
                return False
    return not stack
""",
    ),
    problem(
        "postfix-calculator",
        "interview",
        """Write `postfix(text)` that calculates an expression in postfix form, such as "3 4 + 2 *":
        whole numbers and the operators + - * separated by white space; an operator takes the two
        last values, the left one first. Return the result, or None if an operator lacks values or
        the number of values at the end isn't one.""",
        """
        postfix("5") == 5
        postfix("3 4 +") == 7
        postfix("3 4 + 2 *") == 14
        postfix("10 2 -") == 8
        postfix("2 10 -") == -8
        postfix("") is None
        postfix("1 2") is None
        postfix("+") is None
        postfix("1 +") is None
        postfix("-3 2 *") == -6
        postfix("1 2 3 + +") == 6
        postfix("8 3 2 - -") == 7
        """,
        """
def postfix(text):
    stack = []
    for token in text.split():
        if token in ("+", "-", "*"):
            if len(stack) < 2:
                return None
            right = stack.pop()
            left = stack.pop()
            if token == "+":
                stack.append(left + right)
            elif token == "-":
                stack.append(left - right)
            else:
                stack.append(left * right)
        else:
            stack.append(int(token))
    if len(stack) != 1:
        return None
    return stack[0]
""",
    ),
    problem(
        "text-editor-undo",
        "introductory",
        """Write `edit(commands)` for a list of strings that starts from an empty text: "type X"
        puts X at the end, "delete N" removes the last N characters (all if there are fewer), "undo"
        takes back the last command that was not taken back yet (nothing if there is none). Return
        the text.""",
        """
        edit([]) == ""
        edit(["type ab"]) == "ab"
        edit(["type ab", "type c"]) == "abc"
        edit(["type abc", "delete 2"]) == "a"
        edit(["type abc", "delete 5"]) == ""
        edit(["type abc", "delete 0"]) == "abc"
        edit(["type a", "undo"]) == ""
        edit(["undo", "type a"]) == "a"
        edit(["type a", "type b", "undo", "undo", "undo"]) == ""
        edit(["type abc", "delete 2", "undo", "type d"]) == "abcd"
        edit(["type a b"]) == "a b"
        edit(["type a", "type b", "type c", "undo"]) == "ab"
        """,
        """
def edit(commands):
    text = ""
    history = []
    for command in commands:
        if command == "undo":
            if history:
                text = history.pop()
            continue
        history.append(text)
        name, _, argument = command.partition(" ")
        if name == "type":
            text += argument
        else:
            text = text[:max(len(text) - int(argument), 0)]
    return text
""",
    ),
    problem(
        "next-greater",
        "interview",
        """Write `next_greater(numbers)` that returns a list with, for each position, the first
        number to the right of it that is strictly greater, or None if there is none.""",
        """
        next_greater([]) == []
        next_greater([1]) == [None]
        next_greater([1, 2]) == [2, None]
        next_greater([2, 1]) == [None, None]
        next_greater([2, 1, 3]) == [3, 3, None]
        next_greater([1, 1, 2]) == [2, 2, None]
        next_greater([2, 2]) == [None, None]
        next_greater([4, 1, 2, 3, 5]) == [5, 2, 3, 5, None]
        next_greater([5, 3, 4, 1]) == [None, 4, None, None]
        """,
        """
def next_greater(numbers):
    result = [None] * len(numbers)
    waiting = []
    for i, number in enumerate(numbers):
        while waiting and numbers[waiting[-1]] < number:
            result[waiting.pop()] = number
        waiting.append(i)
    return result
""",
        """
def next_greater(numbers):
    result = []
    for i in range(len(numbers)):
        found = None
        for j in range(i + 1, len(numbers)):
            if numbers[j] > numbers[i]:
                found = numbers[j]
                break
        result.append(found)
    return result
""",
    ),
    problem(
        "remove-adjacent-pairs",
        "introductory",
        """Write `cancel_pairs(text)` that removes two equal neighbouring characters again and again
        until there are none, and returns what is left. "abbac" becomes "c".""",
        """
        cancel_pairs("") == ""
        cancel_pairs("a") == "a"
        cancel_pairs("aa") == ""
        cancel_pairs("abbac") == "c"
        cancel_pairs("aaa") == "a"
        cancel_pairs("abc") == "abc"
        cancel_pairs("abba") == ""
        cancel_pairs("aabb") == ""
        cancel_pairs("abab") == "abab"
        cancel_pairs("xabbay") == "xy"
        """,
        """
def cancel_pairs(text):
    stack = []
    for letter in text:
        if stack and stack[-1] == letter:
            stack.pop()
        else:
            stack.append(letter)
    return "".join(stack)
""",
    ),
    problem(
        "nesting-depth",
        "introductory",
        """Write `depth(text)` that returns how deeply round brackets are nested in a text: "" has
        0, "(a)" 1, "((a)(b))" 2. If a bracket is not closed, or closed before it was opened, return
        -1.""",
        """
        depth("") == 0
        depth("abc") == 0
        depth("(a)") == 1
        depth("((a)(b))") == 2
        depth("()()") == 1
        depth("(((x)))") == 3
        depth("(") == -1
        depth(")") == -1
        depth(")(") == -1
        depth("(()") == -1
        depth("(())()") == 2
        """,
        """
def depth(text):
    level = 0
    deepest = 0
    for letter in text:
        if letter == "(":
            level += 1
            deepest = max(deepest, level)
        elif letter == ")":
            level -= 1
            if level < 0:
                return -1
    if level != 0:
        return -1
    return deepest
""",
    ),
    problem(
        "browser-history",
        "interview",
        """Write `browse(actions)` for a browser that starts on the page "home". "back" and
        "forward" go one page back or forward in the history (if there is none, nothing happens).
        Any other action is the name of a page to visit; that drops all pages ahead. Return the name
        of the final page.""",
        """
        browse([]) == "home"
        browse(["a"]) == "a"
        browse(["a", "back"]) == "home"
        browse(["back"]) == "home"
        browse(["a", "forward"]) == "a"
        browse(["a", "b", "back"]) == "a"
        browse(["a", "b", "back", "forward"]) == "b"
        browse(["a", "b", "back", "c", "forward"]) == "c"
        browse(["a", "b", "back", "back", "back", "forward"]) == "a"
        browse(["a", "back", "b", "back", "forward"]) == "b"
        browse(["a", "b", "c", "back", "back", "x", "back"]) == "a"
        """,
        """
def browse(actions):
    pages = ["home"]
    current = 0
    for action in actions:
        if action == "back":
            if current > 0:
                current -= 1
        elif action == "forward":
            if current < len(pages) - 1:
                current += 1
        else:
            pages = pages[:current + 1]
            pages.append(action)
            current += 1
    return pages[current]
""",
    ),
    problem(
        "queue-times",
        "interview",
        """Write `queue_time(customers, tills)` for a list of how long each customer needs at a
        till. Customers go, in order, to the till that becomes free first. Return the time at which
        all are done; 0 without customers. There is at least one till.""",
        """
        queue_time([], 1) == 0
        queue_time([5], 1) == 5
        queue_time([2, 3], 1) == 5
        queue_time([2, 3], 2) == 3
        queue_time([2, 3, 10], 2) == 12
        queue_time([10, 2, 3, 3], 2) == 10
        queue_time([1, 2, 3, 4, 5], 100) == 5
        queue_time([2, 2, 3, 3, 4, 4], 2) == 9
        queue_time([0, 0], 1) == 0
        """,
        """
def queue_time(customers, tills):
    free_at = [0] * tills
    for time in customers:
        first = free_at.index(min(free_at))
        free_at[first] += time
    return max(free_at)
""",
    ),
    problem(
        "backspace-compare",
        "introductory",
        """Write `same_typed(first, second)` for two strings in which "<" means the backspace key:
        it removes the character typed before it, if any. Tell whether both give the same text.""",
        """
        same_typed("", "") is True
        same_typed("a<", "") is True
        same_typed("ab<", "ac<") is True
        same_typed("ab<<", "c<d<") is True
        same_typed("a<c", "b") is False
        same_typed("<a", "a") is True
        same_typed("<<<", "") is True
        same_typed("a", "b") is False
        same_typed("ab", "a") is False
        same_typed("abc<<", "a") is True
        same_typed("xy<<z", "z") is True
        """,
        """
def same_typed(first, second):
    typed = []
    for keys in (first, second):
        text = ""
        for key in keys:
            if key == "<":
                text = text[:-1]
            else:
                text += key
        typed.append(text)
    return typed[0] == typed[1]
""",
    ),
)

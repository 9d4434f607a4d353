"""Problems about whole numbers: divisors, primes, digits, sequences."""

from factory.problems.sources.source import problem

PROBLEMS = (
    problem(
        "prime-factors",
        "introductory",
        """Write `prime_factors(number)` that returns the list of the prime factors of a whole
        number (at least 1) in rising order, each as often as it divides the number. 1 has none.""",
        """
        prime_factors(1) == []
        prime_factors(2) == [2]
        prime_factors(4) == [2, 2]
        prime_factors(12) == [2, 2, 3]
        prime_factors(13) == [13]
        prime_factors(49) == [7, 7]
        prime_factors(30) == [2, 3, 5]
        prime_factors(97) == [97]
        prime_factors(100) == [2, 2, 5, 5]
        prime_factors(26) == [2, 13]
        """,
        """
def prime_factors(number):
    factors = []
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    if number > 1:
        factors.append(number)
    return factors
""",
    ),
    problem(
        "primes-between",
        "introductory",
        """Write `primes_between(low, high)` that returns the list of all prime numbers p with low
        <= p <= high.""",
        """
        primes_between(1, 10) == [2, 3, 5, 7]
        primes_between(2, 2) == [2]
        primes_between(4, 4) == []
        primes_between(-5, 3) == [2, 3]
        primes_between(14, 16) == []
        primes_between(10, 5) == []
        primes_between(23, 29) == [23, 29]
        primes_between(24, 28) == []
        primes_between(0, 1) == []
        primes_between(9, 9) == []
        primes_between(47, 50) == [47]
        """,
        """
def primes_between(low, high):
    primes = []
    for number in range(max(low, 2), high + 1):
        is_prime = True
        divisor = 2
        while divisor * divisor <= number:
            if number % divisor == 0:
                is_prime = False
                break
            divisor += 1
        if is_prime:
            primes.append(number)
    return primes
""",
        """
def primes_between(low, high):
    sieve = [True] * (max(high, 1) + 1)
    sieve[0] = sieve[1] = False
    for number in range(2, len(sieve)):
        if sieve[number]:
            for multiple in range(2 * number, len(sieve), number):
                sieve[multiple] = False
    return [number for number in range(max(low, 0), high + 1) if sieve[number]]
""",
    ),
    problem(
        "perfect-kind",
        "introductory",
        """Write `divisor_kind(number)` for a whole number of at least 1: add up its divisors that
        are smaller than itself and return "perfect" if the sum equals the number, "abundant" if it
        is greater, "deficient" if it is smaller.""",
        """
        divisor_kind(1) == "deficient"
        divisor_kind(2) == "deficient"
        divisor_kind(6) == "perfect"
        divisor_kind(28) == "perfect"
        divisor_kind(12) == "abundant"
        divisor_kind(18) == "abundant"
        divisor_kind(8) == "deficient"
        divisor_kind(20) == "abundant"
        divisor_kind(27) == "deficient"
        """,
        """
def divisor_kind(number):
    total = 0
    for divisor in range(1, number):
        if number % divisor == 0:
            total += divisor
    if total == number:
        return "perfect"
    if total > number:
        return "abundant"
    return "deficient"
""",
    ),
    problem(
        "fraction-lowest-terms",
        "introductory",
        """Write `lowest_terms(top, bottom)` that reduces a fraction and returns it as a pair. The
        second number of the pair is positive; zero is (0, 1). `bottom` is not 0.""",
        """
        lowest_terms(2, 4) == (1, 2)
        lowest_terms(3, 7) == (3, 7)
        lowest_terms(-2, 4) == (-1, 2)
        lowest_terms(2, -4) == (-1, 2)
        lowest_terms(-6, -4) == (3, 2)
        lowest_terms(0, 5) == (0, 1)
        lowest_terms(0, -5) == (0, 1)
        lowest_terms(12, 4) == (3, 1)
        lowest_terms(17, 51) == (1, 3)
        """,
        """
def lowest_terms(top, bottom):
    a = abs(top)
    b = abs(bottom)
    while b > 0:
        a, b = b, a % b
    if bottom < 0:
        top = -top
        bottom = -bottom
    return (top // a, bottom // a)
""",
    ),
    problem(
        "collatz-peak",
        "introductory",
        """Write `collatz(number)` that starts from a whole number of at least 1 and, until 1 is
        reached, halves even numbers and replaces odd numbers n by 3n + 1. Return the pair (number
        of steps, largest number met, the start included).""",
        """
        collatz(1) == (0, 1)
        collatz(2) == (1, 2)
        collatz(3) == (7, 16)
        collatz(4) == (2, 4)
        collatz(5) == (5, 16)
        collatz(6) == (8, 16)
        collatz(7) == (16, 52)
        collatz(16) == (4, 16)
        collatz(9) == (19, 52)
        """,
        """
def collatz(number):
    steps = 0
    peak = number
    while number != 1:
        if number % 2 == 0:
            number //= 2
        else:
            number = 3 * number + 1
        peak = max(peak, number)
        steps += 1
    return (steps, peak)
""",
    ),
    problem(
        "next-same-digits",
        "introductory",
        """Write `next_with_same_digits(number)` that returns the smallest whole number greater than
        `number` (at least 0) that is written with the same digits, or -1 if there is none.""",
        """
        next_with_same_digits(12) == 21
        next_with_same_digits(21) == -1
        next_with_same_digits(123) == 132
        next_with_same_digits(132) == 213
        next_with_same_digits(115) == 151
        next_with_same_digits(0) == -1
        next_with_same_digits(9) == -1
        next_with_same_digits(2017) == 2071
        next_with_same_digits(1432) == 2134
        next_with_same_digits(111) == -1
        next_with_same_digits(1211) == 2111
        next_with_same_digits(1222) == 2122
        """,
        """
def next_with_same_digits(number):
    digits = list(str(number))
    i = len(digits) - 2
    while i >= 0 and digits[i] >= digits[i + 1]:
        i -= 1
    if i < 0:
        return -1
    j = len(digits) - 1
    while digits[j] <= digits[i]:
        j -= 1
    digits[i], digits[j] = digits[j], digits[i]
    rest = digits[i + 1:]
    return int("".join(digits[:i + 1] + rest[::-1]))
""",
    ),
    problem(
        "happy-steps",
        "introductory",
        """Write `is_happy(number)`: replace a whole number (at least 1) by the sum of the squares
        of its digits again and again. Return True if 1 is reached, False if a number comes up a
        second time before.""",
        """
        is_happy(1) is True
        is_happy(7) is True
        is_happy(10) is True
        is_happy(19) is True
        is_happy(2) is False
        is_happy(4) is False
        is_happy(20) is False
        is_happy(100) is True
        is_happy(44) is True
        is_happy(45) is False
        """,
        """
def is_happy(number):
    seen = set()
    while number != 1:
        if number in seen:
            return False
        seen.add(number)
        total = 0
        while number > 0:
            digit = number % 10
            total += digit * digit
            number //= 10
        number = total
    return True
""",
    ),
    problem(
        "check-digit",
        "introductory",
        """Write `check_digit(digits)` for a string of digits. From the right, every second digit,
        beginning with the last one, is doubled, and 9 is subtracted if the result is above 9; the
        others count as they are. Return the digit (0 to 9) that makes the sum of all of these and
        itself a multiple of 10.""",
        """
        check_digit("") == 0
        check_digit("0") == 0
        check_digit("1") == 8
        check_digit("5") == 9
        check_digit("9") == 1
        check_digit("4") == 2
        check_digit("7992739871") == 3
        check_digit("12") == 5
        check_digit("10") == 9
        check_digit("123456") == 6
        """,
        """
def check_digit(digits):
    total = 0
    for i, letter in enumerate(reversed(digits)):
        digit = int(letter)
        if i % 2 == 0:
            digit *= 2
            if digit > 9:
                digit -= 9
        total += digit
    return (10 - total % 10) % 10
""",
    ),
    problem(
        "common-multiples",
        "introductory",
        """Write `common_multiple(numbers)` that returns the smallest whole number above 0 that
        every number of the list divides. All numbers are at least 1; for an empty list the answer
        is 1.""",
        """
        common_multiple([]) == 1
        common_multiple([5]) == 5
        common_multiple([2, 3]) == 6
        common_multiple([4, 6]) == 12
        common_multiple([2, 4, 8]) == 8
        common_multiple([3, 5, 7]) == 105
        common_multiple([6, 10, 15]) == 30
        common_multiple([1, 1]) == 1
        common_multiple([9, 6]) == 18
        """,
        """
def common_multiple(numbers):
    result = 1
    for number in numbers:
        a = result
        b = number
        while b != 0:
            a, b = b, a % b
        result = result * number // a
    return result
""",
        """
def common_multiple(numbers):
    result = 1
    for number in numbers:
        multiple = result
        while multiple % number != 0:
            multiple += result
        result = multiple
    return result
""",
    ),
    problem(
        "square-sum-pairs",
        "interview",
        """Write `square_pairs(number)` that returns all pairs (a, b) of whole numbers with 0 <= a
        <= b and a*a + b*b == number, ordered by a. `number` is at least 0.""",
        """
        square_pairs(0) == [(0, 0)]
        square_pairs(1) == [(0, 1)]
        square_pairs(2) == [(1, 1)]
        square_pairs(3) == []
        square_pairs(5) == [(1, 2)]
        square_pairs(25) == [(0, 5), (3, 4)]
        square_pairs(50) == [(1, 7), (5, 5)]
        square_pairs(8) == [(2, 2)]
        square_pairs(65) == [(1, 8), (4, 7)]
        square_pairs(7) == []
        """,
        """
def square_pairs(number):
    pairs = []
    a = 0
    while 2 * a * a <= number:
        b = a
        while a * a + b * b < number:
            b += 1
        if a * a + b * b == number:
            pairs.append((a, b))
        a += 1
    return pairs
""",
    ),
)

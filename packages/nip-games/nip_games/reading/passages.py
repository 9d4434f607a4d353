"""Passages that are made up, in which an answer needs two facts.

A passage has several chains: a start (the brass key) leads to a middle (Oskar, who took it), and
the middle to an end (the boathouse, where Oskar keeps everything). The question names the start of
one chain and asks for its end; the wrong answer is the end of another one. Sentences stand in any
order, among others that have nothing to do with the question.

Which split a chain belongs to follows from the chain alone, so no chain stands in two.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from nip_core.hashing import derive_seed

Chain = tuple[str, str, str]  # start, middle, end


def _each(words: str, prefix: str = "", suffix: str = "") -> tuple[str, ...]:
    return tuple(f"{prefix}{word.strip()}{suffix}" for word in words.split(","))


_OBJECTS = _each(
    "brass key, blue jug, silver watch, wooden flute, red umbrella, torn map, copper kettle, "
    "glass lamp, leather bag, paper kite, ivory comb, tin whistle, velvet hat, clay bowl, "
    "iron lantern, woollen scarf, carved box, painted fan, rusty compass, spare wheel, "
    "garden shears, fishing net, chess set, music stand",
    "the ",
)
_PEOPLE = _each(
    "Ada, Bruno, Clara, David, Edith, Felix, Greta, Hugo, Ines, Jonas, Karla, Leo, Mara, Nils, "
    "Oskar, Paula, Quentin, Rosa, Stefan, Tilda, Ulrich, Vera, Wanda, Yusuf"
)
_PLACES = _each(
    "boathouse, bakery, library, windmill, chapel, greenhouse, cellar, attic, stable, workshop, "
    "lighthouse, schoolhouse, town hall, orchard hut, ferry office, post office, tea room, "
    "theatre, barn, bell tower",
    "the ",
)
_SHIPS = _each(
    "Heron, Swallow, Osprey, Dolphin, Aurora, Meridian, Fortuna, Halcyon, Juniper, Kestrel, "
    "Larkspur, Mistral, Northwind, Plover, Sandpiper, Tempest",
    "the ",
)
_DATES = tuple(
    day
    for month in ("March", "June", "August", "October")
    for day in _each("second, fifth, ninth, twelfth, twentieth", "the ", f" of {month}")
)
_TIMES = tuple(
    time
    for part in ("half past", "a quarter past", "a quarter to")
    for time in _each("six, seven, eight, nine, ten, eleven", f"{part} ")
)
_HOUSES = _each(
    "green, yellow, white, black, orange, purple, grey, brown, pink, turquoise, crimson, violet, "
    "golden, striped, unpainted, blue",
    "the house with the ",
    " door",
)
_TRADES = _each(
    "baker, tailor, surgeon, painter, locksmith, gardener, teacher, printer, fisher, carpenter, "
    "pharmacist, notary, weaver, beekeeper, potter, musician, translator, watchmaker",
    "a ",
)
_ASIDES = (
    "It had rained for most of the week.",
    "A dog barked somewhere behind the houses.",
    "The market closed early because of the wind.",
    "Nobody remembered who had started the quarrel about the fence.",
    "The bridge was being repaired again.",
    "Two children were flying something that looked like a bird.",
    "There was a smell of tar and coffee in the street.",
    "The band practised the same march all afternoon.",
    "In the evening the lamps were lit one by one.",
    "A letter had come from the capital, but it was not opened.",
    "The new mayor was said to be fond of cherries.",
    "On the hill the grass was already dry.",
)


@dataclass(frozen=True)
class Kind:
    """A subject of passages, with its words and sentences."""

    name: str
    starts: tuple[str, ...]
    middles: tuple[str, ...]
    ends: tuple[str, ...]
    first: tuple[str, ...]
    """Ways to say that a start leads to a middle."""
    second: tuple[str, ...]
    """Ways to say that a middle leads to an end."""
    question: str
    answer: str


KINDS = (
    Kind(
        "kept",
        _OBJECTS,
        _PEOPLE,
        _PLACES,
        ("{middle} was given {start}.", "{start} went to {middle}.", "{middle} has {start} now."),
        (
            "{middle} keeps everything in {end}.",
            "All that {middle} has lies in {end}.",
            "Whatever {middle} gets is locked up in {end}.",
        ),
        "Where is {start} now?",
        "In {end}.",
    ),
    Kind(
        "sailed",
        _OBJECTS,
        _SHIPS,
        _DATES,
        ("{start} was loaded on {middle}.", "{middle} carried {start}."),
        ("{middle} left the island on {end}.", "On {end} {middle} set sail from the island."),
        "When did {start} leave the island?",
        "On {end}.",
    ),
    Kind(
        "ate",
        _PEOPLE,
        _PLACES,
        _TIMES,
        ("{start} ate in {middle} that day.", "The only meal that {start} had was in {middle}."),
        (
            "In {middle} food was served once, at {end}.",
            "Those who ate in {middle} did so at {end}.",
        ),
        "At what time did {start} eat?",
        "At {end}.",
    ),
    Kind(
        "rented",
        _HOUSES,
        _PEOPLE,
        _TRADES,
        ("{middle} rents {start}.", "{start} was let to {middle} years ago."),
        ("{middle} works as {end}.", "{middle} makes a living as {end}."),
        "What does the tenant of {start} work as?",
        "As {end}.",
    ),
)


@dataclass(frozen=True)
class Passage:
    """A passage with a question that it answers."""

    chains: tuple[Chain, ...]
    """That of the question first, then that of the wrong answer."""
    text: str
    question: str
    right: str
    wrong: str


def make_passages(
    seed: int, split: str, count: int, chains: tuple[int, int], asides: int
) -> Iterator[Passage]:
    """So many passages of a split, all different, with the least to the most chains in turn."""
    min_chains, max_chains = chains
    seen_passages: set[frozenset[Chain]] = set()
    number = 0
    while len(seen_passages) < count:
        random = Random(derive_seed("passage", seed, split, number))
        kind = KINDS[number % len(KINDS)]
        size = min_chains + number // len(KINDS) % (max_chains - min_chains + 1)
        number += 1
        chains_of_passage = _chains(kind, split, size, random)
        if frozenset(chains_of_passage) not in seen_passages:
            seen_passages.add(frozenset(chains_of_passage))
            yield _passage(kind, chains_of_passage, asides, random)


def choose_chain_split(kind: str, chain: Chain) -> str:
    """Choose the split of a chain by a hash of it."""
    place = derive_seed("split of a chain", kind, chain) % 100
    return "train" if place < 70 else "validation" if place < 80 else "test"


def _chains(kind: Kind, split: str, size: int, random: Random) -> tuple[Chain, ...]:
    """Draw chains of the split without a start, middle or end in common."""
    chain_list: list[Chain] = []
    used: set[str] = set()
    while len(chain_list) < size:
        chain = (random.choice(kind.starts), random.choice(kind.middles), random.choice(kind.ends))
        if not used & {*chain} and choose_chain_split(kind.name, chain) == split:
            chain_list.append(chain)
            used |= {*chain}
    return tuple(chain_list)


def _passage(kind: Kind, chains: tuple[Chain, ...], asides: int, random: Random) -> Passage:
    # 1. The facts and the sentences around them, in any order.
    sentences = []
    for start, middle, end in chains:
        sentences.append(random.choice(kind.first).format(start=start, middle=middle))
        sentences.append(random.choice(kind.second).format(middle=middle, end=end))
    sentences += random.sample(_ASIDES, asides)
    random.shuffle(sentences)
    # 2. The question about the first chain; another one has the wrong answer.
    (start, _, end), (_, _, other_end) = chains[:2]
    return Passage(
        chains=chains,
        text=" ".join(sentence[0].upper() + sentence[1:] for sentence in sentences),
        question=kind.question.format(start=start),
        right=kind.answer.format(end=end),
        wrong=kind.answer.format(end=other_end),
    )

"""`graphs`: are two graphs not isomorphic? A verifier with private coins can be convinced of it.

For each episode the verifier's coins choose one of the two graphs, rename its nodes at random, and
show the result to the provers as a challenge. Who can tell the graphs apart says of which one it
was made. Where they are isomorphic, the challenge is the same for both, and no prover can do better
than guess: a false claim survives k challenges with a probability of 1/2^k.
"""

import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from random import Random
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from nip_core.distribution import how_to_install
from nip_core.errors import DatasetError
from nip_core.hashing import derive_seed
from nip_core.protocols import Protocol
from nip_core.scenarios.base import (
    PROVER,
    VERIFIER,
    Column,
    Row,
    Scenario,
    ScenarioSettings,
    Words,
)

Edge = tuple[int, int]
Edges = tuple[Edge, ...]
NAMES = ("A", "B")
CLAIM = "The graphs A and B are not isomorphic."
TENTHS = {"train": range(6), "validation": range(6, 8), "test": range(8, 10)}
"""Of all classes of isomorphic graphs, by split: so no graph stands in two, under any names."""
_LINE = re.compile(r"^([AB]): (\d+-\d+(?:, \d+-\d+)*)$", re.MULTILINE)
_CHALLENGE = re.compile(r"^\d+: (\d+-\d+(?:, \d+-\d+)*)$", re.MULTILINE)
_DRAWN = 300  # graphs, of which the different ones are played
_LENGTH = 8  # of the longest closed walks that are counted


class GraphsSettings(ScenarioSettings):
    """Which graphs are drawn."""

    nodes: Annotated[int, Field(ge=6, le=40)] = 14
    """Of each graph."""
    degree: Annotated[int, Field(ge=2, le=8)] = 3
    """Edges of each node: of all nodes equally many, so that degrees do not tell graphs apart."""
    challenges: Annotated[int, Field(ge=1, le=16)] = 2
    """Graphs that the verifier's coins make for an episode. A false claim survives k of them with a
    probability of 1/2^k."""
    seed: int = 0
    """Another seed gives other pairs."""
    train_size: Annotated[int, Field(ge=2)] = 500
    """Pairs of the training split, half of them isomorphic."""
    validation_size: Annotated[int, Field(ge=2)] = 50
    """Pairs of the validation split."""
    test_size: Annotated[int, Field(ge=2)] = 100
    """Pairs of the test split."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.nodes * self.degree % 2 or self.degree >= self.nodes:
            raise ValueError(
                f"there is no graph of {self.nodes} nodes of degree {self.degree}: nodes times "
                "degree must be even, and degree less than nodes"
            )
        return self


class Graphs(Scenario):
    """Two regular graphs, and coins that only the verifier sees."""

    name = "graphs"
    settings: GraphsSettings
    Settings = GraphsSettings
    columns = (
        Column("question", "Graphs"),
        Column("solution", "Claim"),
        Column("coin", "Your coins", seen_by=(VERIFIER,), drawn=True),
        Column("challenge", "Challenges of the verifier", seen_by=(PROVER,), drawn=True),
    )
    generated = ("pairs",)
    words = Words(
        expert="an expert in graphs",
        thing="claim",
        claim="two graphs are not isomorphic",
        doubt="With a probability of one half they are isomorphic.",
        correct="the claim is true",
        evidence="your coins",
        source="the challenges",
        open_claim="Two graphs may or may not be isomorphic",
        materials="the graphs, the claim and the coins",
        labels=("isomorphic", "not isomorphic"),
        asked_in_short="which graph each challenge is",
    )

    def generate(self, dataset: str, split: str) -> Iterator[Row]:
        """Pairs of graphs whose classes are the split's; every second pair is isomorphic."""
        settings = self.settings
        seen_questions: set[str] = set()
        classes = _classes(settings.nodes, settings.degree)[split]
        if len(classes) < 2:
            raise DatasetError(
                f"scenario_settings: {split} has {len(classes)} different graphs of "
                f"{settings.nodes} nodes of degree {settings.degree}; raise nodes"
            )
        for number in range(getattr(settings, f"{split}_size")):
            draw = Random(derive_seed("graphs", settings.seed, split, number))
            # 1. Two classes, or one twice.
            different = number % 2 == 1
            pair = draw.sample(classes, 2) if different else [draw.choice(classes)] * 2
            # 2. Under other names, by which no two pairs are equal.
            question = ""
            while not question or question in seen_questions:
                question = write_question(*(rename_nodes(edges, draw) for edges in pair))
            seen_questions.add(question)
            yield {
                "question": question,
                "solution": CLAIM,
                "y": int(different),
                "difficulty": f"{settings.nodes} nodes of degree {settings.degree}",
            }

    def label(self, row: Row) -> int:
        """Compare the graphs. Raises ValueError for texts in other words than `generate` uses."""
        solution = row["solution"]
        if solution.strip() != CLAIM:
            raise ValueError(f"the solution must be {CLAIM!r} (got {solution!r:.80})")
        return int(not is_isomorphic(*read_graphs(row["question"])))

    def guaranteed_soundness(self, protocol: Protocol) -> float | None:
        """Count the outcomes of the coins, where the verifier says nothing before it decides."""
        speaks_once = protocol.turns_of("verifier", 0, protocol.max_message_rounds) == 1
        return 1 - 0.5**self.settings.challenges if protocol.provers and speaks_once else None

    def draw(self, problem: Mapping[str, str], seed: int) -> Mapping[str, str]:
        """Toss the verifier's coins, and make the challenges with them."""
        graphs = read_graphs(problem["question"])
        random = Random(derive_seed("coins of graphs", seed))
        coins = [random.randrange(2) for _ in range(self.settings.challenges)]
        challenges = [write_edges(rename_nodes(graphs[coin], random)) for coin in coins]
        return {
            "coin": _describe_coins(coins),
            "challenge": "Each is A or B with its nodes renamed; the verifier alone knows which. "
            "Name the graph of each one.\n" + _numbered(challenges),
        }

    def draw_again(self, texts: Mapping[str, str], seed: int) -> Mapping[str, str]:
        """Toss the coins again, as far as the challenges leave them open."""
        graphs, random = read_graphs(texts["question"]), Random(derive_seed("coins again", seed))
        coins = []
        for challenge in _CHALLENGE.findall(texts["challenge"]):
            edges = read_edges(challenge)
            coins.append(random.choice([c for c in (0, 1) if is_isomorphic(graphs[c], edges)]))
        return {"coin": _describe_coins(coins)}

    def check(self, protocol: Protocol) -> None:
        """Refuse to play without networkx, since it compares the graphs."""
        if importlib.util.find_spec("networkx") is None:
            raise ValueError(
                "scenario: graphs needs networkx, which is not installed; "
                f"{how_to_install('graphs')}"
            )


# Texts.


def write_question(first: Edges, second: Edges) -> str:
    """Two graphs, each in a line."""
    nodes = 1 + max(max(edge) for edge in (*first, *second))
    lines = [f"{n}: {write_edges(e)}" for n, e in zip(NAMES, (first, second), strict=True)]
    return "\n".join([f"Both have the nodes 0 to {nodes - 1}, and these edges.", *lines])


def write_edges(edges: Iterable[Edge]) -> str:
    """The edges of a graph: `0-1, 0-4`."""
    return ", ".join(f"{a}-{b}" for a, b in edges)


def read_edges(text: str) -> Edges:
    """The edges in the words of `write_edges`."""
    pairs = (edge.split("-") for edge in text.split(", "))
    return tuple((int(a), int(b)) for a, b in pairs)


def read_graphs(question: str) -> tuple[Edges, Edges]:
    """The two graphs of a question. Raises ValueError if they are not worded as by nip."""
    lines = dict(_LINE.findall(question))
    if tuple(sorted(lines)) != NAMES:
        raise ValueError(
            f'the question must have lines "A: 0-1, ..." and "B: 0-1, ..." (got {question!r:.80})'
        )
    first, second = (read_edges(lines[name]) for name in NAMES)
    return first, second


def _describe_coins(coins: Iterable[int]) -> str:
    return (
        "Each challenge that experts see is A or B with its nodes renamed; only you know which, so "
        "keep it to yourself. Whoever can tell A and B apart names them all. If A and B are "
        "isomorphic, nobody can do more than guess.\n" + _numbered(NAMES[coin] for coin in coins)
    )


def _numbered(lines: Iterable[str]) -> str:
    return "\n".join(f"{number}: {line}" for number, line in enumerate(lines, 1))


# Graphs.


def rename_nodes(edges: Edges, random: Random) -> Edges:
    """The graph with its nodes renamed at random, its edges sorted."""
    nodes = sorted({node for edge in edges for node in edge})
    names = dict(zip(nodes, random.sample(nodes, len(nodes)), strict=True))
    pairs = ((names[a], names[b]) for a, b in edges)
    return tuple(sorted((min(edge), max(edge)) for edge in pairs))


def is_isomorphic(first: Edges, second: Edges) -> bool:
    """Tell whether other names make one graph of the other."""
    import networkx

    if _closed_walks(first) != _closed_walks(second):
        return False
    graphs = [networkx.Graph(list(edges)) for edges in (first, second)]
    return bool(networkx.vf2pp_is_isomorphic(*graphs))


@cache
def _classes(nodes: int, degree: int) -> dict[str, list[Edges]]:
    """Draw regular graphs by split, no two of them isomorphic."""
    import networkx

    alike: dict[tuple[int, ...], list[Edges]] = {}
    for number in range(_DRAWN):
        seed = derive_seed("regular graph", nodes, degree, number) % 2**32
        graph = networkx.random_regular_graph(degree, nodes, seed=seed)
        edges = tuple(sorted((min(edge), max(edge)) for edge in graph.edges))
        group = alike.setdefault(_closed_walks(edges), [])
        if not any(is_isomorphic(edges, graph) for graph in group):
            group.append(edges)
    # Isomorphic graphs have equally many closed walks of each length, so the same split.
    splits: dict[str, list[Edges]] = {split: [] for split in TENTHS}
    for walks, graphs in alike.items():
        tenth = derive_seed("split of graphs", *walks) % 10
        splits[next(split for split, tenths in TENTHS.items() if tenth in tenths)] += graphs
    return splits


def _closed_walks(edges: Edges) -> tuple[int, ...]:
    size = 1 + max(max(edge) for edge in edges)
    matrix = np.zeros((size, size), dtype=np.int64)
    for a, b in edges:
        matrix[a, b] = matrix[b, a] = 1
    counts, walks = [], matrix
    for _ in range(_LENGTH - 1):
        walks = walks @ matrix
        counts.append(int(walks.trace()))
    return tuple(counts)

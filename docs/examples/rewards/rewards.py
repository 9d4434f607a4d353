"""A right verdict, and few words: what an ended episode pays, by agent."""

from nip_core.protocols import EndedEpisode

WORDS = 100


def short_and_right(episode: EndedEpisode) -> dict[str, float]:
    """Pay as the protocol does, and the prover less for every word beyond a hundred."""
    words = sum(len(text.split()) for text in episode.said("prover"))
    price = min(max(words - WORDS, 0) / 1000, 1)
    return {**episode.rewards, "prover": episode.rewards["prover"] - price}

"""A right verdict, and few words: what an ended episode pays, by agent."""

from nip_core.protocols import EndedEpisode

WORDS = 18


def short_and_right(episode: EndedEpisode) -> dict[str, float]:
    """Pay as the protocol does, and the prover 0.1 less for each word beyond eighteen."""
    words = sum(len(text.split()) for text in episode.said("prover"))
    price = min(0.1 * max(words - WORDS, 0), 1.0)
    return {**episode.rewards, "prover": episode.rewards["prover"] - price}

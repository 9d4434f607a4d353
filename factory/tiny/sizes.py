"""The same recipe for a model of another size: its width and depth from a number of parameters."""

import re
from dataclasses import replace

from factory.tiny.recipes import Recipe

SMALLEST, LARGEST = 500_000, 300_000_000
_WIDTHS = [*range(64, 544, 32), *range(640, 1408, 128)]
_WIDE = 512  # from here on heads are 64 wide, not 32
_WIDTH_PER_LAYER = (32, 64)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


def parse_parameters(text: str) -> int:
    """A number of parameters from a text such as 64M or 250000000.

    Raises:
        ValueError: It is no number, or none that the recipes are for.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMB]?)", text.strip().upper())
    if match is None:
        raise ValueError(f"{text!r} is no number of parameters: write it as 4M or 250M")
    parameters = round(float(match[1]) * _UNITS[match[2]])
    if not SMALLEST <= parameters <= LARGEST:
        raise ValueError(f"{text} parameters: the recipes can be stretched from 500K to 300M")
    return parameters


def count_parameters(recipe: Recipe) -> int:
    """Count the parameters of a recipe's Llama: embeddings (the head too), layers, norms."""
    width = recipe.hidden
    biases = 4 * width if recipe.look_back else 0
    layer = 4 * width**2 + 3 * width * recipe.feed_forward + biases + 2 * width
    return recipe.vocabulary * width + recipe.layers * layer + width


def resize(recipe: Recipe, parameters: int) -> Recipe:
    """Give the recipe the width and the depth nearest to a number of parameters.

    A width is 32 to 64 times the depth, as in the bundled models and in published ones of these
    sizes. Feed-forward layers keep their share of the width. The learning rate of the matrices
    falls with the width, the one of embeddings and norms stays (Yang et al. 2022, "Tensor Programs
    V", table 8, for optimizers whose update does not depend on the size of the gradient).
    """
    shapes = (
        _shaped(recipe, width, layers)
        for width in _WIDTHS
        for layers in range(2, 41)
        if _WIDTH_PER_LAYER[0] <= width / layers <= _WIDTH_PER_LAYER[1]
    )
    return min(shapes, key=lambda shape: abs(count_parameters(shape) - parameters))


def _shaped(recipe: Recipe, width: int, layers: int) -> Recipe:
    feed_forward = round(recipe.feed_forward * width / recipe.hidden / 32) * 32
    return replace(
        recipe,
        hidden=width,
        layers=layers,
        heads=width // (64 if width > _WIDE else 32),
        feed_forward=feed_forward,
        matrix_lr=recipe.matrix_lr * recipe.hidden / width,
    )

"""Generated pictures: discs, rectangles and triangles over one another in noise, with the class of each pixel."""

from __future__ import annotations

import numpy as np

from hpcml_train.data.masks import Array, Masked

CLASSES = 4  # background, disc, rectangle, triangle
_SEED = 20151118  # not the run's: every run is given the same pictures
_OBJECTS = 3  # in each picture
_BACKGROUND = 0.2
_BRIGHTNESS = (0.5, 1.0)  # of a shape
_NOISE = 0.1  # the standard deviation, of grey values from 0 to 1


def draw(count: int, side: int, *, part: int) -> Masked:
    """Return *count* grey pictures of side x side pixels; another *part* has others."""
    generator = np.random.RandomState(_SEED + part)  # the same numbers in every version of NumPy
    images = np.empty((count, side, side, 1), dtype=np.float32)
    masks = np.zeros((count, side, side), dtype=np.uint8)
    rows, columns = np.mgrid[:side, :side]
    for number in range(count):
        image = np.full((side, side), _BACKGROUND)
        for _ in range(_OBJECTS):
            kind = generator.randint(1, CLASSES)
            inside = _inside(kind, rows, columns, generator, side)
            image[inside] = generator.uniform(*_BRIGHTNESS)
            masks[number][inside] = kind
        noise = generator.normal(0, _NOISE, (side, side))
        images[number, :, :, 0] = np.clip(image + noise, 0, 1)
    return Masked(images=images, masks=masks)


def _inside(kind: int, rows: Array, columns: Array, generator: np.random.RandomState, side: int) -> Array:
    """Return which pixels lie in a shape of random place and size."""
    row, column = generator.uniform(0.15, 0.85, 2) * side
    size = generator.uniform(0.15, 0.3) * side
    down, right = rows - row, columns - column
    if kind == 1:
        return down**2 + right**2 <= size**2
    if kind == 2:
        height, width = generator.uniform(0.5, 1.0, 2) * size
        return (abs(down) <= height) & (abs(right) <= width)
    return (abs(down) <= size) & (abs(right) <= (down + size) / 2)  # on its base, the tip above

"""The data sets digits and MNIST as bytes, read from files on this machine; nothing is downloaded."""

from __future__ import annotations

import gzip
import importlib.util
import os
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Dict, List, Optional, Tuple

from hpcml_train.errors import DatasetError

if TYPE_CHECKING:
    from typing import BinaryIO

_DIGITS_PIXELS = 64
_IDX_IMAGES, _IDX_LABELS = 0x0803, 0x0801  # unsigned bytes in three and in one dimension
_MNIST_FOLDERS = ("", "raw", os.path.join("MNIST", "raw"))  # the last is how torchvision leaves it


@dataclass(frozen=True)
class Images:
    """Grey images of equal size with one label each, as unsigned bytes: `pixels` by image, row and column."""

    pixels: bytes
    labels: bytes
    height: int
    width: int
    largest: int  # what white is: 16 in digits, 255 in MNIST

    def __len__(self) -> int:
        return len(self.labels)


def read_digits() -> Images:
    """Return the 1797 digits of 8x8 pixels that are shipped with scikit-learn, which is not imported.

    They are UCI's optical recognition of handwritten digits. Raises `DatasetError` where they are absent.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DatasetError("data=digits is a file of scikit-learn, which is missing: pip install 'hpcml[torch]'")
    path = os.path.join(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            rows = [bytes(map(int, line.split(","))) for line in file]
    except (OSError, EOFError, ValueError) as error:
        raise DatasetError(f"data=digits: {path} cannot be read ({error}): reinstall scikit-learn") from error
    if not rows or any(len(row) != _DIGITS_PIXELS + 1 for row in rows):
        raise DatasetError(f"data=digits: {path} is not the file that hpcml knows: install another scikit-learn")
    pixels = b"".join(row[:_DIGITS_PIXELS] for row in rows)
    return Images(pixels=pixels, labels=bytes(row[_DIGITS_PIXELS] for row in rows), height=8, width=8, largest=16)


def read_mnist(path: str) -> Tuple[Images, Images]:
    """Return MNIST's 60000 training and 10000 test images of 28x28 from *path*: IDX files, or Keras's mnist.npz.

    Files may be gzipped and in torchvision's folders. Raises `DatasetError`.
    """
    if not os.path.exists(path):
        raise DatasetError(f"data.path={path} does not exist")
    archive = os.path.join(path, "mnist.npz") if os.path.isdir(path) else path
    if os.path.isfile(archive):
        return _read_npz(archive)
    return _read_idx_pair(path, "train"), _read_idx_pair(path, "t10k")


def split(images: Images, holdout: float) -> Tuple[Images, Images]:
    """Return *images* without and with the share *holdout* (0 to 1) of each class.

    The choice depends on nothing else: every run is validated on the same images, spread evenly over the file.
    """
    if not 0.0 < holdout < 1.0:
        raise ValueError(f"holdout={holdout} must lie between 0 and 1")
    seen: Dict[int, int] = {}
    kept: List[int] = []
    held_out: List[int] = []
    for index, label in enumerate(images.labels):
        count = seen[label] = seen.get(label, 0) + 1
        # every time that the share of the class passes a whole number
        (held_out if int(count * holdout) > int((count - 1) * holdout) else kept).append(index)
    return _select(images, kept), _select(images, held_out)


def _select(images: Images, indices: List[int]) -> Images:
    size = images.height * images.width
    pixels = b"".join(images.pixels[index * size : (index + 1) * size] for index in indices)
    return replace(images, pixels=pixels, labels=bytes(images.labels[index] for index in indices))


def _read_idx_pair(path: str, part: str) -> Images:
    shape, pixels = _read_idx(_find_idx(path, part, "images", 3), _IDX_IMAGES)
    labels_file = _find_idx(path, part, "labels", 1)
    (count,), labels = _read_idx(labels_file, _IDX_LABELS)
    if count != shape[0]:
        raise DatasetError(f"{labels_file} has {count} labels for {shape[0]} images")
    return Images(pixels=pixels, labels=labels, height=shape[1], width=shape[2], largest=255)


def _find_idx(path: str, part: str, what: str, dimensions: int) -> str:
    for folder in _MNIST_FOLDERS:
        for dot in ("-", "."):
            for suffix in ("", ".gz"):
                name = os.path.join(path, folder, f"{part}-{what}{dot}idx{dimensions}-ubyte{suffix}")
                if os.path.isfile(name):
                    return name
    raise DatasetError(f"data.path={path} has neither mnist.npz nor {part}-{what}-idx{dimensions}-ubyte[.gz]")


def _read_idx(name: str, magic: int) -> Tuple[Tuple[int, ...], bytes]:
    try:
        with _open(name) as file:
            content = file.read()
    except (OSError, EOFError) as error:
        raise DatasetError(f"{name} cannot be read: {error}") from error
    dimensions = magic & 0xFF
    begin = 4 + 4 * dimensions
    if len(content) < begin or struct.unpack(">I", content[:4])[0] != magic:
        raise DatasetError(f"{name} is no IDX file of unsigned bytes in {dimensions} dimension(s)")
    shape = struct.unpack(f">{dimensions}I", content[4:begin])
    size = 1
    for length in shape:
        size *= length
    if len(content) - begin != size:
        raise DatasetError(f"{name} is cut short or damaged: {len(content) - begin} bytes of data instead of {size}")
    return shape, content[begin:]


def _open(name: str) -> BinaryIO:
    return gzip.open(name, "rb") if name.endswith(".gz") else open(name, "rb")  # type: ignore[return-value]


def _read_npz(name: str) -> Tuple[Images, Images]:
    if importlib.util.find_spec("numpy") is None:
        raise DatasetError(f"{name} needs NumPy to be read: install it, or give the IDX files")
    import zipfile

    import numpy as np

    parts: List[Images] = []
    try:
        with np.load(name, allow_pickle=False) as arrays:
            for part in ("train", "test"):
                x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
                problem = _npz_problem(x.ndim, str(x.dtype), len(x), len(y))
                if problem is not None:
                    raise DatasetError(f"{name}: {problem}")
                if len(wrong := y[(y < 0) | (y > 255)]):
                    raise DatasetError(f"{name}: label {wrong[0]} of y_{part} is no class: they are 0 to 255")
                labels = y.astype(np.uint8).tobytes()
                parts.append(
                    Images(pixels=x.tobytes(), labels=labels, height=x.shape[1], width=x.shape[2], largest=255)
                )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{name} is not Keras's mnist.npz: {error}") from error
    return parts[0], parts[1]


def _npz_problem(dimensions: int, dtype: str, images: int, labels: int) -> Optional[str]:
    if dimensions != 3 or dtype != "uint8":
        return f"images are {dtype} in {dimensions} dimensions instead of uint8 in 3"
    return None if images == labels else f"{labels} labels for {images} images"

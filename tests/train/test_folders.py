from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

from hpcml_train.data.folders import find_pictures, read_picture
from hpcml_train.errors import DatasetError


def write(path: Path, mode: str = "RGB", size: tuple[int, int] = (8, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, 200 if mode == "L" else None).save(path)
    return path


def test_classes_are_folders_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("train/zebra/1.png", "train/ant/b.JPEG", "train/ant/a.jpg", "val/zebra/1.jpg"):
        write(tmp_path / name)
    (tmp_path / "train" / "ant" / "notes.txt").touch()

    found = find_pictures(str(tmp_path), 0.2)

    assert found.classes == ("ant", "zebra")
    assert [Path(path).name for path in found.training.paths] == ["a.jpg", "b.JPEG", "1.png"]
    assert found.training.labels.tolist() == [0, 0, 1]
    assert found.validation.labels.tolist() == [1]


def test_without_a_folder_to_validate_on_a_share_of_each_class_is_held_out(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        for number in range(10):
            write(tmp_path / "train" / name / f"{number}.png")

    found = find_pictures(str(tmp_path), 0.2)

    assert (len(found.training), found.validation.labels.tolist()) == (16, [0, 0, 1, 1])
    assert set(found.training.paths).isdisjoint(found.validation.paths)


def test_faults_of_a_folder_are_named(tmp_path: Path) -> None:
    def said() -> str:
        with pytest.raises(DatasetError) as raised:
            find_pictures(str(tmp_path), 0.2)
        return str(raised.value)

    assert said() == f"data.path={tmp_path} has no folder train with a folder for each class"
    write(tmp_path / "train" / "ant" / "1.png")
    assert said() == f"{tmp_path}/train has 1 class folder(s): at least 2 are needed"
    (tmp_path / "train" / "bee").mkdir()
    assert said().startswith(f"{tmp_path}/train/bee has no picture (.jpg, .jpeg, .png)")
    write(tmp_path / "train" / "bee" / "1.png")
    assert "holds out no picture of train" in said()
    write(tmp_path / "val" / "cow" / "1.png")
    assert said() == f"{tmp_path}/val/cow is a class that train does not have"


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "1"])
@pytest.mark.parametrize("size", [(8, 8), (300, 40), (5, 90)])
def test_every_kind_and_shape_of_picture_becomes_a_square_in_three_colours(
    tmp_path: Path, mode: str, size: tuple[int, int]
) -> None:
    pixels = read_picture(str(write(tmp_path / "a.png", mode, size)), 32)

    assert (pixels.shape, pixels.dtype) == ((32, 32, 3), np.uint8)


def test_the_middle_is_kept(tmp_path: Path) -> None:
    wide = Image.new("RGB", (90, 30))
    wide.paste((255, 0, 0), (30, 0, 60, 30))
    wide.save(tmp_path / "a.png")

    pixels = read_picture(str(tmp_path / "a.png"), 16)

    assert (pixels[:, :, 0] > 250).all()


@pytest.mark.parametrize("suffix", ["png", "jpg"])
@pytest.mark.parametrize("keep", [0, 10, 60, 400])
def test_a_picture_that_cannot_be_decoded_is_named(tmp_path: Path, suffix: str, keep: int) -> None:
    path = tmp_path / f"a.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype="uint8")
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:keep])

    with pytest.raises(DatasetError, match=rf"a\.{suffix} cannot be decoded"):
        read_picture(str(path), 32)

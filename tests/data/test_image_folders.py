"""Folders of images by client: what becomes of files, and what is said of bad ones."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from quped.data.image_folders import load_images
from quped.errors import DataError

RNG = np.random.default_rng(0)


def picture(path: Path, height: int = 6, width: int = 4) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Write a random image, and return its pixels."""
    pixels = RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def test_files_become_samples_of_their_clients(tmp_path: Path) -> None:
    pixels = {
        f"{client}/{kind}/{i}.png": picture(tmp_path / client / kind / f"{i}.png")
        for client in ("ann", "bob")
        for kind in ("cat", "dog")
        for i in range(5)
    }
    (tmp_path / "ann" / "cat" / ".DS_Store").write_text("hidden")
    loaded = load_images(tmp_path)
    assert list(loaded.clients) == ["ann", "bob"]
    assert (loaded.input_shape, loaded.classes, loaded.class_names) == ((3, 6, 4), 2, ("cat", "dog"))
    mean, std = (np.array(loaded.preparation[key]) for key in ("mean", "std"))
    trained = []
    for client, shares in loaded.clients.items():
        assert shares.test is not None
        assert (len(shares.train), len(shares.test)) == (8, 2)
        for samples in (shares.train, shares.test):
            batch = samples.batch(torch.arange(len(samples)))
            for value, label in zip(batch.inputs[0].numpy(), batch.labels.tolist(), strict=True):
                image = np.rint(value.transpose(1, 2, 0) * std + mean).astype(np.uint8)
                (name,) = [name for name, known in pixels.items() if np.array_equal(known, image)]
                assert name.startswith(f"{client}/{loaded.class_names[label]}/")
                trained += [image] * (samples is shares.train)
    np.testing.assert_allclose(mean, np.stack(trained).mean((0, 1, 2)))
    np.testing.assert_allclose(std, np.stack(trained).std((0, 1, 2)))


def test_folders_can_name_the_parts(tmp_path: Path) -> None:
    for part, count in (("train", 3), ("test", 2), ("validation", 1)):
        for i in range(count):
            for kind in ("0", "1"):
                picture(tmp_path / part / "ann" / kind / f"{i}.png")
    shares = load_images(tmp_path).clients["ann"]
    assert [None if part is None else len(part) for part in shares] == [6, 4, 2]


def test_images_are_resized_and_turned_gray(tmp_path: Path) -> None:
    for i, (height, width) in enumerate([(6, 4), (9, 7), (12, 5), (8, 8)]):
        picture(tmp_path / "ann" / str(i % 2) / f"{i}.png", height, width)
    loaded = load_images(tmp_path, (5, 3), "gray")
    assert loaded.input_shape == (1, 5, 3)
    assert loaded.preparation["size"] == [5, 3]


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none cannot be read: No such file"):
        load_images(tmp_path / "none")
    with pytest.raises(DataError, match="holds no images"):
        load_images(tmp_path)
    for i in range(4):
        picture(tmp_path / "ann" / str(i % 2) / f"{i}.png")
    (tmp_path / "ann" / "1" / "z.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"ann/1/z\.png is no image that can be read.*Repair it or remove it"):
        load_images(tmp_path)
    whole = (tmp_path / "ann" / "0" / "0.png").read_bytes()
    (tmp_path / "ann" / "1" / "z.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"ann/1/z\.png is no image that can be read"):
        load_images(tmp_path)
    picture(tmp_path / "ann" / "1" / "z.png", 9, 4)
    with pytest.raises(DataError, match=r"z\.png has 9 x 4 pixels, but .*0\.png has 6 x 4: resize all"):
        load_images(tmp_path)
    (tmp_path / "ann" / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match=r"notes\.txt is not where an image belongs: images are in CLIENT/CLASS/FILE"):
        load_images(tmp_path)

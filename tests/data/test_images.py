"""Batches of images: scaled, normalised, and augmented for training only."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from quped.data import Subset
from quped.data.batches import draw
from quped.data.datasets.images import PAD, ImageSamples, flipped_and_shifted
from quped.data.download import store

IMAGES = torch.randint(1, 256, (40, 3, 12, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
MEAN, STD = (0.5, 0.25, 0.125), (0.5, 0.25, 0.5)

Make = Callable[[bool], ImageSamples]


@pytest.fixture
def make(cache: Path) -> Make:
    """Return a maker of the stored images, augmented or not."""
    cache.mkdir()
    store.write(cache / "pictures.safetensors", {"train_images": IMAGES, "train_labels": torch.arange(40)}, "", cache)
    return lambda augment: ImageSamples(cache / "pictures.safetensors", "train", MEAN, STD, augment=augment)


def test_batch_is_normalised(make: Make) -> None:
    """(pixel / 255 - mean) / std, by channel."""
    batch = make(False).batch(torch.tensor([3, 1]))
    expected = (IMAGES[[3, 1]].numpy() / 255 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    assert batch.inputs[0].dtype == torch.float32
    np.testing.assert_allclose(batch.inputs[0].numpy(), expected, atol=1e-6)
    assert batch.labels.tolist() == [3, 1]


def test_evaluation_is_not_augmented(make: Make) -> None:
    """Without a generator the images are as they are."""
    indices = torch.arange(40)
    plain = make(False).batch(indices).inputs[0]
    assert torch.equal(make(True).batch(indices).inputs[0], plain)
    assert torch.equal(make(False).batch(indices, np.random.default_rng(0)).inputs[0], plain)
    assert not torch.equal(make(True).batch(indices, np.random.default_rng(0)).inputs[0], plain)


def test_augmented_image_is_a_flipped_and_shifted_one() -> None:
    """Each result equals the crop, one by one, of the padded image or of its mirror image; all kinds occur."""
    count = 400
    images = IMAGES[torch.arange(count) % 40]
    results = flipped_and_shifted(images, np.random.default_rng(0))
    kinds = set()
    for image, result in zip(images, results, strict=True):
        padded = torch.nn.functional.pad(image, (PAD,) * 4)
        crops = {
            (row, column, flip): (crop.flip(-1) if flip else crop)
            for row in range(2 * PAD + 1)
            for column in range(2 * PAD + 1)
            for flip in (False, True)
            for crop in [padded[:, row : row + 12, column : column + 10]]
        }
        matches = [kind for kind, crop in crops.items() if torch.equal(crop, result)]
        assert len(matches) == 1
        kinds.add(matches[0])
    rows, columns, flips = zip(*kinds, strict=True)
    assert set(rows) == set(columns) == set(range(9))
    assert set(flips) == {False, True}


def test_augmentation_comes_from_seed_client_and_round(make: Make) -> None:
    """The same flips and shifts, here of one image again and again, for the same key; others for any other."""
    data = Subset(make(True), torch.zeros(20, dtype=torch.long))

    def drawn(seed: int, client: str, round_: int) -> torch.Tensor:
        batches = draw(
            data, seed=seed, client=client, round_=round_, first=2 * round_, steps=2, batch_size=5, batches_per_step=1
        )
        return torch.cat([batch.inputs[0] for (batch,) in batches])

    assert torch.equal(drawn(1, "a", 3), drawn(1, "a", 3))
    for key in ((2, "a", 3), (1, "b", 3), (1, "a", 4)):
        assert not torch.equal(drawn(1, "a", 3), drawn(*key))


def test_travels_as_a_reference(make: Make) -> None:
    """A subset is pickled without the pixels, and comes back with the same batches."""
    data = Subset(make(True), torch.arange(10))
    message = pickle.dumps(data)
    assert len(message) < 2000
    back = pickle.loads(message)
    one, other = (samples.batch(torch.arange(4), np.random.default_rng(5)) for samples in (data, back))
    assert torch.equal(one.inputs[0], other.inputs[0])
    assert torch.equal(one.labels, other.labels)


def test_double_precision_where_it_is_the_default(make: Make) -> None:
    """As the networks' weights."""
    torch.set_default_dtype(torch.float64)
    try:
        assert make(True).batch(torch.arange(2)).inputs[0].dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)

"""The page computes what the network computes, in a real browser."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.browser import CHROMIUM, opened
from helpers.chains import network
from helpers.exported import quantized
from torch import Tensor, nn

from quped._rng import torch_seeded
from quped.data.datasets import DATASETS
from quped.errors import QupedError
from quped.export import html, to_bytes
from quped.models import build, quantizable

pytestmark = pytest.mark.slow

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium")

SEVEN = [[[0.1, 0.1], [0.3, 0.1], [0.18, 0.4]]]
LARGER = [[[2 * x + 0.2, 2 * y + 0.1] for x, y in stroke] for stroke in SEVEN]


def digits() -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network for digits, and 50 of them with their labels."""
    batch = DATASETS["digits"]().test.batch(torch.arange(50))
    with torch_seeded(0, "digits"):
        return build("cnn1", (1, 8, 8), 10), batch.inputs[0], batch.labels


@needs_chromium
@pytest.mark.parametrize("float16", [False, True])
def test_the_page_gives_digits_the_same_classes(float16: bool, tmp_path: Path) -> None:
    """And makes of a drawing an image like them."""
    module, inputs, labels = digits()
    model = quantized(module, 2)
    page = tmp_path / "page.html"
    names = [f"</script>{i}" for i in range(10)]
    assert "64 inputs" in html.write_html(module, model, inputs, labels, page, names, float16=float16, most_samples=50)
    document, report = opened(page, f"test&draw={SEVEN}".replace(" ", ""), tmp_path / "profile")
    chosen = html.choose(labels, 50)
    with torch.no_grad():
        expected = module(inputs[chosen])
    got = torch.tensor(report["scores"])
    assert torch.equal(got.argmax(1), expected.argmax(1))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-2 if float16 else 1e-4)
    assert report["wrong"] == 0
    assert f"{len(to_bytes(model, float16=float16)) / 1000:.1f} kB" in document
    image = np.array(report["drawing"]["image"]).reshape(8, 8)
    low, high = float(inputs.min()), float(inputs.max())
    ink = (image - low) / (high - low)
    assert (ink.min(), ink.max()) == (pytest.approx(0), pytest.approx(1, abs=0.02))
    assert (ink.sum(1) > 0.3).all()  # it fills the height, as digits do
    assert ink[0].sum() > ink[1:].sum(1).max()  # the top of a 7
    with torch.no_grad():
        again = module(torch.tensor(image, dtype=torch.float32).reshape(1, 1, 8, 8))[0]
    torch.testing.assert_close(torch.tensor(report["drawing"]["scores"]), again, rtol=1e-4, atol=1e-2)


@needs_chromium
def test_the_page_computes_every_stage(tmp_path: Path) -> None:
    """Of a network that has all of them; and says so if a browser computes something else than PyTorch did."""
    module, inputs = network("varied")
    model = quantized(module, dict.fromkeys(quantizable(module), (3, True)))
    page = tmp_path / "page.html"
    labels = torch.arange(len(inputs)) % 5
    html.write_html(module, model, inputs, labels, page, most_samples=8)
    text = page.read_text()
    page.write_text(re.sub(r'"predicted":\[\d+', '"predicted":[9', text))
    document, report = opened(page, "test", tmp_path / "profile")
    with torch.no_grad():
        expected = module(inputs[html.choose(labels, 8)])
    torch.testing.assert_close(torch.tensor(report["scores"]), expected, rtol=1e-4, atol=1e-4)
    assert report["wrong"] == 1
    assert "1 of 8 samples" in document
    assert report["drawing"] is None


@needs_chromium
def test_a_drawing_is_as_large_and_as_centred_as_mnist(tmp_path: Path) -> None:
    """Wherever it is drawn, and however large; and the page stays small."""
    with torch_seeded(0, "images"):
        module = build("cnn1", (1, 28, 28), 10)
        inputs = (torch.randint(256, (40, 1, 28, 28)) * (torch.rand(40, 1, 28, 28) < 0.2) / 255 - 0.13) / 0.31
    page = tmp_path / "page.html"
    html.write_html(module, quantized(module, 2), inputs, torch.arange(40) % 10, page)
    assert page.stat().st_size <= 60_000
    images = []
    for i, strokes in enumerate((SEVEN, LARGER)):
        _, report = opened(page, f"test&draw={strokes}".replace(" ", ""), tmp_path / f"profile{i}")
        images.append(np.array(report["drawing"]["image"]).reshape(28, 28) * 0.31 + 0.13)
    np.testing.assert_allclose(images[0], images[1], atol=0.05)
    rows = np.nonzero(images[0].max(1) > 0.5)[0]
    assert np.ptp(rows) + 1 in (19, 20, 21)
    center = (images[0].sum(1) @ np.arange(28) / images[0].sum(), images[0].sum(0) @ np.arange(28) / images[0].sum())
    assert center == pytest.approx((13.9, 13.9), abs=0.2)
    length = 0.2 + np.hypot(0.12, 0.3)  # in the drawing, whose height of 0.3 becomes 20 pixels but for the line's width
    assert images[0].sum() == pytest.approx(2.4 * length * 17.6 / 0.3, rel=0.15)


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    """It names no other file, and its own rules forbid it."""
    module, inputs, labels = digits()
    page = tmp_path / "page.html"
    html.write_html(module, quantized(module, 1), inputs, labels, page, ["</script><b>"] * 10)
    text = page.read_text()
    assert not re.search(r"https?:|\bsrc=|\bhref=|@import|url\(|</script><b>", text)
    assert "default-src 'none'" in text
    assert text.count("<script") == text.count("</script>") == 2


def test_a_network_that_cannot_be_a_page_is_named(tmp_path: Path) -> None:
    """And nothing is written."""
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    with pytest.raises(QupedError, match=r"layer '1' \(Tanh\)"):
        html.write_html(module, quantized(module, {}), torch.randn(4, 4), torch.zeros(4), tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_samples_of_all_classes_are_chosen() -> None:
    """In turn, the first ones of each."""
    assert html.choose(torch.tensor([2, 2, 0, 2, 1, 0]), 4) == [2, 4, 0, 5]


def test_paper_and_ink_are_those_of_the_images() -> None:
    """Black on white, or white on black."""
    image = torch.tensor([[[[0.0, 0.0, 0.0, 0.2, 1.0]]]])
    assert html.levels(image) == (0.0, 1.0)
    assert html.levels(1 - image) == (1.0, 0.0)

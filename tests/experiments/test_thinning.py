"""What is stored of a figure says all that the whole would, in fewer bytes."""

import math
import re
import zipfile

import numpy as np
import pytest
import xarray as xr
from PIL import Image

from experiments import picture, records, report, thinning
from experiments.__main__ import main
from experiments.figure import REGISTRY, Claim, Effort, Estimate, Figure
from fljax.metrics.names import TRAFFIC

EFFORT = Effort(8, 4, True)


def runs(seeds=8, rounds=50):
    """A study as a sweep returns it: errors that fall, and the bits of both directions."""
    noise = np.random.default_rng(0).lognormal(size=(seeds, rounds))
    bits = np.broadcast_to(320.0 * np.arange(1, rounds + 1), noise.shape).astype(np.int64)
    dims = ("seed", "round")
    return xr.Dataset(
        {"error": (dims, noise / np.arange(1, rounds + 1), {"units": "1"}), "bits": (dims, bits)},
        coords={"seed": np.arange(seeds), "round": np.arange(1, rounds + 1)},
        attrs={"code": "made up"},
    )


def mean_error(studies):
    return {"all rounds": Estimate.exact(float(studies["a"]["error"].mean()), "")}


def last_bits(studies):
    return {"of all": Estimate.exact(float(studies["a"]["bits"][:, -1].mean()), "bit")}


def plot(studies):
    drawing, (ax,) = picture.panels(["one"])
    ax.plot(studies["a"]["round"], studies["a"]["error"].mean("seed"))
    return drawing


@pytest.fixture
def figure():
    """Makes figures of one study and one claim."""

    def make(measure=mean_error, **more):
        texts = ("made", "Made up", "nowhere", "Nothing.")
        claims = [Claim("low", "it is low", "nowhere", measure, (-math.inf, math.inf))]
        return Figure(*texts, lambda _: {"a": runs()}, plot, claims, [], **more)

    yield make
    REGISTRY.pop("made", None)


def page_of(figure, studies):
    return report.page(records.plain(records.record(figure, studies, EFFORT, 0)))


@pytest.mark.slow
def test_stored_data_are_judged_as_the_full_data(figure, tmp_path):
    built = figure()
    full = {"a": runs(), "b": runs(seeds=3)}
    written = records.store(built, thinning.thinned(built, full, EFFORT), tmp_path, EFFORT, 0.0)
    # A record that is stored names the commit besides.
    assert re.sub("commit [^,]*, ", "", report.page(written)) == page_of(built, full)
    stored = records.read_studies(built, tmp_path)
    assert stored.keys() == full.keys()
    error = stored["a"]["error"]
    before = full["a"]["error"]
    assert error.attrs == before.attrs
    np.testing.assert_array_equal(error[:, -1], before[:, -1].astype(np.float32))
    assert 0 < abs(error / before - 1).max() <= 2 ** -thinning.BITS[0]
    assert "bits" not in stored["a"]
    assert records.check(built, tmp_path)[1] == []


def test_figures_that_need_all_bits_keep_them(figure):
    def odd(studies):
        mantissas = np.ldexp(np.frexp(studies["a"]["error"].values)[0], 24)
        return {"last bits": Estimate.exact(float((mantissas % 2).mean()), "")}

    built = figure(odd)
    full = {"a": runs()}
    np.testing.assert_array_equal(
        thinning.thinned(built, full, EFFORT)["a"]["error"], full["a"]["error"].astype(np.float32)
    )


def test_counts_are_kept_for_figures_that_request_it(figure):
    built = figure(last_bits, keep=("bits",))
    result = thinning.thinned(built, {"a": runs()}, EFFORT)["a"]
    assert {*TRAFFIC} & {*result} == {"bits"}
    assert result["bits"].dtype == np.int32
    many = runs().assign(bits=2**31 + runs()["bits"])
    result = thinning.thinned(built, {"a": many}, EFFORT)["a"]
    np.testing.assert_array_equal(result["bits"], many["bits"])


@pytest.mark.slow
def test_a_figure_that_reads_unstored_data_is_refused(figure, tmp_path, capsys):
    thin_figure = figure(keep=("bits",))
    records.store(thin_figure, {"a": runs()[["error"]]}, tmp_path, EFFORT, 0.0)
    missing = "made reads 'bits', which is not stored for it; name it in the figure's keep="
    with pytest.raises(records.Broken, match=missing):
        thinning.thinned(figure(last_bits), {"a": runs()}, EFFORT)
    for command, answer in (("draw", 2), ("check", 1)):
        assert main([command, "made", "--out", str(tmp_path)]) == answer
        assert missing in "".join(capsys.readouterr())


def test_unrelated_errors_of_a_measure_propagate(figure):
    with pytest.raises(KeyError, match="nothing"):
        thinning.thinned(figure(lambda s: s["nothing"]), {"a": runs()}, EFFORT)


def test_numbers_are_rounded_to_the_nearest():
    result = thinning.fewer_bits(np.array([1.0, 1.01, -1.01, 3e-40, 0.0, np.inf, np.nan]), 6)
    np.testing.assert_array_equal(result[[0, 1, 2, 4, 5, 6]], [1.0, 1.0, -1.0, 0.0, np.inf, np.nan])
    assert result[3] == pytest.approx(3e-40, rel=2**-6)


def test_the_same_studies_give_the_same_file(tmp_path):
    for name in ("one", "other"):
        records.save_studies({"b": runs(), "a": runs()}, tmp_path / f"{name}.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "other.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as file:
        assert file.namelist() == ["a.nc", "b.nc"]


def test_a_palette_changes_no_color_that_is_seen(tmp_path):
    ramp = np.arange(256 * 64, dtype=np.float64).reshape(64, 256) % 256
    image = np.stack([ramp, ramp[::-1], 255 - ramp], axis=-1).astype(np.uint8)
    image[:32] = 255
    Image.fromarray(image).save(tmp_path / "x.png")
    records.reduce_palette(tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as few:
        assert few.mode == "P"
        after = np.asarray(few.convert("RGB")).astype(int)
    assert abs(after - image).max() <= 8
    assert (after[:32] == 255).all()

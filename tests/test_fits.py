"""Saved fits: numpy.polyfit's numbers, a file that reads back, and never a fit made for something else."""

import json

import numpy as np
import pytest
import yaml

from fastcache import fits
from fastcache.errors import UserError
from fastcache.rescale import Rescale

SAMPLER = {"_target_": "fastcache.sampler.FewStep", "steps": [1000, 500], "renoise": "fresh"}
ON = fits.fitted_on("tiny", "ab12", SAMPLER, "modulated_input", 6, 3, ["a red circle stays"])
SAMPLES = [{"x": x, "y": 0.2 + 0.5 * x + 0.1 * x * x, "chunk": 0, "step": 1} for x in (0.3, 0.5, 0.9, 1.4)]


@pytest.fixture
def folders(tmp_path):
    shipped, made = tmp_path / "rescale", tmp_path / "fits"
    shipped.mkdir()
    (shipped / "auto.yaml").write_text("name: auto\ndegree: 2\n")
    (shipped / "none.yaml").write_text("name: none\n")
    return shipped, made


def save(folder, on=ON, degree=2):
    path = fits.fit_path(folder, on, fits.asked_of({"degree": degree}))
    fits.save_fit(fits.make_fit(SAMPLES, degree, on), SAMPLES, path)
    return path


def test_a_polynomial_is_found_again_and_its_quality_told():
    fit = fits.make_fit(SAMPLES, 2, ON)
    assert fit["coefficients"] == pytest.approx([0.1, 0.5, 0.2])
    assert (fit["degree"], fit["n"], fit["domain"]) == (2, 4, [0.3, 1.4])
    assert fit["r2"] == pytest.approx(1.0)
    waves = [{"x": x, "y": y} for x, y in zip((1, 2, 3, 4), (1, -1, -1, 1), strict=True)]
    poor = fits.make_fit(waves, 1, ON, gate=False)
    assert poor["r2"] == pytest.approx(0.0, abs=1e-12)
    assert fits.make_fit([{"x": 1.0, "y": 0.4}, {"x": 2.0, "y": 0.4}], 1, ON)["r2"] is None


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_coefficients_are_numpy_polyfits(degree):
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0.2, 1.5, 40), rng.uniform(0, 1, 40)
    fit = fits.make_fit([{"x": a, "y": b} for a, b in zip(x, y, strict=True)], degree, ON, gate=False)
    assert fit["coefficients"] == pytest.approx(list(np.polyfit(x, y, degree)))
    rescale = Rescale(fit["coefficients"], fit["domain"], clamp=False)
    assert rescale(0.7) == pytest.approx(np.polyval(np.polyfit(x, y, degree), 0.7))


def test_the_degree_falls_where_there_are_too_few_distances():
    two = [{"x": x, "y": y} for x, y in ((0.5, 0.1), (0.5, 0.3), (0.8, 0.6))]
    fit = fits.make_fit(two, 4, ON)
    assert (fit["degree"], fit["asked"]["degree"]) == (1, 4)
    assert np.polyval(fit["coefficients"], [0.5, 0.8]) == pytest.approx([0.2, 0.6])


@pytest.mark.parametrize(
    "request_",
    [
        {"degree": 5},
        {"degree": -1},
        {"degree": 1.5},
        {"degree": True},
        {"degree": "two"},
        {"gate": "maybe"},
        {"gate": None},
    ],
    ids=str,
)
def test_a_form_that_no_fit_can_have_is_refused(request_):
    with pytest.raises(UserError, match=next(iter(request_))):
        fits.asked_of(request_)


@pytest.mark.parametrize("samples", [[], [{"x": 1.0, "y": float("nan")}], [{"x": float("inf"), "y": 1.0}]])
def test_samples_that_cannot_be_fitted_are_refused(samples):
    with pytest.raises(UserError, match="cannot fit"):
        fits.make_fit(samples, 1, ON)


def test_a_saved_fit_reads_back_whole_with_its_samples(folders):
    path = save(folders[1])
    fit = fits.load_fit(path)
    assert fit == fits.make_fit(SAMPLES, 2, ON) | {"samples": f"{path.stem}.samples.json", "path": str(path)}
    assert fits.load_samples(path) == SAMPLES
    assert {p.name for p in path.parent.iterdir()} == {path.name, f"{path.stem}.samples.json"}


def test_auto_takes_the_shipped_fit_whatever_its_frames_and_prompts(folders):
    save(folders[0], ON | {"frames": 21, "seed": 9, "prompts": "other", "num_prompts": 32})
    found = fits.resolve_rescale({"name": "auto", "degree": 2}, ON, *folders)
    assert found.fit["fitted_on"]["frames"] == 21
    assert not found.needs_probe


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"weights": "ff"},
        {"sampler": SAMPLER | {"renoise": "shared"}},
        {"indicator": "e0"},
    ],
    ids=str,
)
def test_auto_probes_where_the_shipped_fit_is_for_something_else(folders, change):
    save(folders[0])
    assert fits.resolve_rescale({"name": "auto", "degree": 2}, ON | change, *folders) == (None, True)
    ((key, value),) = change.items()
    said = "sampler.renoise fresh there, shared here" if key == "sampler" else f"{key} {ON[key]} there, {value} here"
    with pytest.raises(UserError, match=said):
        fits.check_match(fits.make_fit(SAMPLES, 2, ON), ON | change)


@pytest.mark.parametrize("change", [{"frames": 9}, {"seed": 4}, {"prompts": "other"}], ids=str)
def test_auto_reuses_its_own_fit_only_for_exactly_the_same_probe(folders, change):
    save(folders[1])
    auto = {"name": "auto", "degree": 2}
    assert fits.resolve_rescale(auto, ON, *folders).fit["n"] == 4
    assert fits.resolve_rescale(auto, ON | change, *folders).needs_probe
    assert fits.resolve_rescale(auto | {"degree": 1}, ON, *folders).needs_probe
    assert fits.resolve_rescale(auto | {"gate": False}, ON, *folders).needs_probe


def test_auto_does_not_probe_again_where_the_degree_had_to_fall(folders):
    path = fits.fit_path(folders[1], ON, fits.asked_of({"degree": 2}))
    two = SAMPLES[:2]
    fits.save_fit(fits.make_fit(two, 2, ON), two, path)
    assert fits.resolve_rescale({"name": "auto", "degree": 2}, ON, *folders).fit["degree"] == 1


def test_none_file_and_name_are_resolved(folders):
    path = save(folders[1])
    assert fits.resolve_rescale({"name": "none"}, ON, *folders) == (None, False)
    assert fits.resolve_rescale({"name": "file", "file": str(path)}, ON, *folders).fit["n"] == 4
    assert fits.resolve_rescale(yaml.safe_load(path.read_text()), ON, *folders).fit["n"] == 4


def test_a_fit_for_another_sampler_is_refused_by_name_and_by_file(folders):
    path = save(folders[1], ON | {"sampler": SAMPLER | {"renoise": "shared"}})
    for request in ({"name": "file", "file": str(path)}, yaml.safe_load(path.read_text())):
        with pytest.raises(UserError, match="sampler"):
            fits.resolve_rescale(request, ON, *folders)


@pytest.mark.parametrize(
    "change",
    [
        {"coefficients": [1.0, float("nan"), 0.0]},
        {"coefficients": [1.0]},
        {"coefficients": "1, 2, 3"},
        {"domain": [1.0, 0.0]},
        {"domain": None},
        {"fitted_on": "tiny"},
        {"degree": 4},
        {"coefficients": []},
        {"steps": [{"step": 1, "coefficients": [float("inf")], "domain": [0.0, 1.0]}]},
        {"steps": [{"step": 1}]},
        {"steps": 2},
        {"steps": [{"step": 1, "coefficients": [0.1], "domain": [1.0, 0.0]}]},
    ],
    ids=str,
)
def test_a_malformed_file_is_a_user_error(tmp_path, change):
    path = tmp_path / "fit.yaml"
    path.write_text(yaml.safe_dump(fits.make_fit(SAMPLES, 2, ON) | change))
    with pytest.raises(UserError, match="fit.yaml"):
        fits.load_fit(path)


def test_missing_and_unreadable_files_are_user_errors(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        fits.load_fit(tmp_path / "absent.yaml")
    for text in ("", "just words", "a: [1,", "degree: 2"):
        (tmp_path / "fit.yaml").write_text(text)
        with pytest.raises(UserError, match="fit.yaml"):
            fits.load_fit(tmp_path / "fit.yaml")
    with pytest.raises(UserError, match="samples"):
        fits.load_samples(tmp_path / "fit.yaml")


def test_names_tell_samplers_apart():
    names = {
        fits.fit_name(ON | {"sampler": sampler})
        for sampler in (SAMPLER, SAMPLER | {"renoise": "shared"}, {"_target_": "fastcache.sampler.Euler"})
    }
    assert names == {
        "tiny-few_step-fresh-modulated_input",
        "tiny-few_step-shared-modulated_input",
        "tiny-euler-modulated_input",
    }
    json.dumps(ON)

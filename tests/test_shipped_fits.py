"""The fits of conf/rescale: what their samples say, made on what they name, found for exactly that."""

import hashlib

import numpy as np
import pytest
import yaml

from fastcache import catalog, config, fits
from fastcache.errors import UserError
from fastcache.settings import resolve

FOLDER = catalog.CONF / "rescale"
SHIPPED = [path for path in sorted(FOLDER.glob("*.yaml")) if "coefficients" in yaml.safe_load(path.read_text())]
MADE_FOR = {
    "tiny_t2v": [],
    "tiny_t2v_shared": ["sampler.renoise=shared"],
    "tiny_t2v_euler": ["sampler=euler"],
}
each = pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)


def settings(*words):
    (job,) = config.plan(["method=teacache", "device=cpu", "num_videos=1", *words]).jobs
    return resolve(*job)


def test_every_sampler_has_its_fit():
    assert MADE_FOR.keys() <= {path.stem for path in SHIPPED}


@each
def test_a_fit_is_what_its_samples_say_and_lies_beside_them(path):
    fit = fits.load_fit(path)
    assert fit["samples"] == f"{path.stem}.samples.json"
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    again = fits.make_fit(fits.load_samples(path), fitted_on=fit["fitted_on"], **fit["asked"])
    for key in ("coefficients", "domain", "r2", "loo", "rank"):
        assert again[key] == pytest.approx(fit[key], rel=1e-6), key
    for key in ("name", "degree", "steps", "n", "gate"):
        assert again[key] == fit[key], key


@each
def test_a_fit_can_be_trusted_on_its_range(path):
    fit = fits.load_fit(path)
    values = np.polyval(fit["coefficients"], np.linspace(*fit["domain"], 200))
    assert values.min() >= 0 and np.diff(values).min() >= 0
    assert fit["r2"] > 0.9 and fit["loo"] < 0.03
    assert fit["gate"] == []


@each
def test_a_fit_names_the_shipped_weights_and_the_calibration_prompts(path):
    on = fits.load_fit(path)["fitted_on"]
    assert on["weights"] == settings(f"model={on['model']}", "rescale=none")["weights"]["sha256"]
    texts = catalog.load("prompts", "calibration")["texts"][: on["num_prompts"]]
    assert len(texts) == on["num_prompts"] >= 32
    assert on["prompts"] == hashlib.sha256("\n".join(texts).encode()).hexdigest()


@pytest.mark.parametrize(("name", "words"), MADE_FOR.items(), ids=MADE_FOR.keys())
def test_auto_and_the_name_find_it_and_the_others_are_refused(name, words):
    mine = fits.load_fit(FOLDER / f"{name}.yaml")
    found = settings(*words)["rescale"]
    assert (found["used"]["coefficients"], found["probe"]) == (mine["coefficients"], False)
    named = settings(*words, f"rescale={name}")["rescale"]
    assert (named["name"], named["used"]["coefficients"]) == (name, mine["coefficients"])
    for other in MADE_FOR.keys() - {name}:
        with pytest.raises(UserError, match=r"made for something else: .*sampler\."):
            settings(*words, f"rescale={other}")


@pytest.mark.parametrize(
    "words", [["sampler.shift=3"], ["sampler.steps=[1000,750,500,200]"], ["indicator=e0"]], ids=str
)
def test_other_settings_get_a_probe_of_their_own(words):
    assert settings(*words)["rescale"]["probe"]

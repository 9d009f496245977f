"""What every cache method promises, run on a toy model for each file of conf/method; a new method inherits it all."""

import dataclasses
import functools
import json
from pathlib import Path

import pytest
import torch
import toy
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf

from fastcache.errors import UserError
from fastcache.methods.base import INDICATORS, CacheMethod
from fastcache.methods.none import NoCache
from fastcache.rescale import Rescale

CONF = Path(__file__).parents[1] / "conf" / "method"
NAMES = sorted(path.stem for path in CONF.glob("*.yaml"))
parsed = functools.cache(lambda name: OmegaConf.load(CONF / f"{name}.yaml"))
REFUSED = {("motioncache", "e0")}  # needs a per-token indicator
FLOORS = {toy.FxxF: 0.5, toy.FFxx: 0.5, toy.Fxxx: 0.25}


def load(name: str, **options):
    """The YAML of a method; top-level keys are overridden where it declares them."""
    around = {"indicator": "modulated_input", "sampler": {"frames_per_chunk": toy.GRID.frames}}
    return OmegaConf.merge(around, parsed(name), options)


def build(name: str, **options) -> CacheMethod:
    return instantiate(load(name, **options).method)


def in_between(name: str) -> dict[str, float]:
    """A dial at which some steps are computed and some are not."""
    return {"thresh": {"thresh": 0.7}, "skip": {"skip": 1}}.get(class_of(name).dial, {})


@functools.cache
def class_of(name: str) -> type[CacheMethod]:
    return get_class(load(name).method._target_)


DIALLED = [name for name in NAMES if class_of(name).dial]
ADAPTIVE = [name for name in NAMES if "rescale" in load(name).method]


@pytest.fixture(scope="module")
def reference():
    return toy.rollout(NoCache(), toy.FFFF)[0]


def test_every_seed_row_is_there():
    assert {"none", "euler", "reuse", "calibrate"} <= set(NAMES)
    for name in ("teacache", "flowcache", "taylorseer", "motioncache"):
        assert {name, f"{name}_paper"} <= set(NAMES)
    assert {build(name).name for name in NAMES} >= {"none", "euler"}


@pytest.mark.parametrize("name", NAMES)
def test_a_forced_schedule_is_the_reference_bit_for_bit(name, reference):
    latents, fractions = toy.rollout(build(name), toy.FFFF)
    assert torch.equal(latents, reference)
    assert toy.mean(fractions) == 1.0


@pytest.mark.parametrize("forced", FLOORS)
@pytest.mark.parametrize("name", DIALLED)
def test_dial_at_off_computes_everything(name, forced, reference):
    kind = class_of(name)
    latents, fractions = toy.rollout(build(name, **{kind.dial: kind.off}), forced)
    assert torch.equal(latents, reference)
    assert toy.mean(fractions) == 1.0


@pytest.mark.parametrize("forced", FLOORS)
@pytest.mark.parametrize("name", DIALLED)
def test_dial_at_most_leaves_the_forced_steps(name, forced):
    kind = class_of(name)
    model = toy.ToyModel()
    _, fractions = toy.rollout(build(name, **{kind.dial: kind.most}), forced, model=model)
    assert toy.mean(fractions) == FLOORS[forced]
    # The store pass and the forced steps are all that ran: a skipped step costs nothing.
    assert model.calls == [toy.GRID.tokens] * (3 * (sum(forced) + 1))


@pytest.mark.parametrize("name", DIALLED)
def test_compute_falls_with_the_dial(name, reference):
    kind = class_of(name)
    grids = {"thresh": [0.0, 0.3, 0.6, 0.8, 1.0, 1.3, 1e9], "interval": [1, 1.5, 2, 3, 4], "skip": [0, 1, 2, 3]}
    grid = grids[kind.dial]
    runs = [toy.rollout(build(name, **{kind.dial: value}), toy.Fxxx) for value in grid]
    means = [toy.mean(fractions) for _, fractions in runs]
    assert means == sorted(means, reverse=True)
    assert any(0.25 < value < 1.0 for value in means)
    assert not torch.equal(runs[-1][0], reference)


@pytest.mark.parametrize("name", NAMES)
def test_fraction_is_what_the_blocks_were_asked_for(name):
    model = toy.ToyModel()
    options = in_between(name)
    _, fractions = toy.rollout(build(name, **options), toy.FxxF, model=model)
    asked = sum(model.calls) - 3 * toy.GRID.tokens  # less the store passes
    assert asked == pytest.approx(sum(map(sum, fractions)) * toy.GRID.tokens)


@pytest.mark.parametrize("name", NAMES)
def test_a_forced_step_is_exact_whatever_came_before(name):
    checked = []

    def check(step, run, result):
        if step.forced_full:
            assert result.fraction == 1.0
            assert torch.equal(result.x, run.full())
            checked.append(step.step_idx)

    options = {"thresh": 0.7} if class_of(name).dial == "thresh" else {}
    toy.rollout(build(name, **options), toy.FxxF, on_step=check)
    assert checked == [0, 3] * 3


@pytest.mark.parametrize("name", ["reuse", *ADAPTIVE])
def test_a_reused_token_adds_the_residual_of_the_step_that_last_computed_it(name):
    kept, reused = torch.empty(0), 0

    def check(step, run, result):
        nonlocal kept, reused
        asked = run.asked if run.asked is not None else torch.arange(toy.GRID.tokens * (result.fraction == 1.0))
        fresh = torch.zeros(toy.GRID.tokens, dtype=torch.bool).index_fill(0, asked, True)
        now = result.x - step.x
        if step.step_idx:
            torch.testing.assert_close(now[:, ~fresh], kept[:, ~fresh])
            kept = torch.where(fresh[:, None], now, kept)
            reused += int((~fresh).sum())
        else:
            kept = now

    for thresh in (0.5, 0.7, 0.9):
        toy.rollout(build(name, **({"thresh": thresh} if name in DIALLED else {})), toy.Fxxx, on_step=check)
    assert reused


@pytest.mark.parametrize("name", NAMES)
def test_a_second_video_is_unaffected_by_the_first(name):
    options = in_between(name)
    used = build(name, **options)
    toy.rollout(used, toy.Fxxx, video=0)
    latents, fractions = toy.rollout(used, toy.Fxxx, video=1)
    expected, expected_fractions = toy.rollout(build(name, **options), toy.Fxxx, video=1)
    assert torch.equal(latents, expected)
    assert fractions == expected_fractions


@pytest.mark.parametrize("name", NAMES)
def test_a_chunk_never_starts_from_the_former_chunks_state(name):
    options = {"thresh": 1e9} if class_of(name).dial == "thresh" else {}
    _, fractions = toy.rollout(build(name, **options), (False, True, True, True))
    assert [row[0] for row in fractions] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_raises(name):
    with pytest.raises(TypeError, match="tresh"):
        class_of(name)(tresh=0.3)


@pytest.mark.parametrize("name", DIALLED)
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "fast", None, True])
def test_a_bad_dial_is_a_user_error(name, value):
    kind = class_of(name)
    with pytest.raises(UserError, match=kind.dial):
        kind(**{kind.dial: value})


@pytest.mark.parametrize("indicator", INDICATORS)
@pytest.mark.parametrize("name", ADAPTIVE)
def test_each_indicator_works_or_is_refused(name, indicator, reference):
    if (name, indicator) in REFUSED:
        with pytest.raises(UserError, match=f"{name} needs a per-token indicator; {indicator} is per frame"):
            class_of(name)(indicator=indicator)
        return
    latents, fractions = toy.rollout(build(name, indicator=indicator, thresh=0.0), toy.Fxxx)
    assert torch.equal(latents, reference)
    _, fractions = toy.rollout(build(name, indicator=indicator, thresh=1e9), toy.Fxxx)
    assert toy.mean(fractions) == 0.25


@pytest.mark.parametrize("name", ADAPTIVE)
def test_an_unknown_indicator_is_refused(name):
    with pytest.raises(UserError, match="modulated_input"):
        class_of(name)(indicator="modulated")


@pytest.mark.parametrize("name", NAMES)
def test_config_is_the_whole_method(name):
    config = load(name).method
    method = build(name)
    options = {field.name for field in dataclasses.fields(method)}
    assert set(config) - {"_target_"} == options, "the YAML shows every option"
    assert set(method.config()) == {"name"} | options
    json.dumps(method.config(), allow_nan=False)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_config_tells_fits_apart(name):
    kind = class_of(name)
    one, two = (kind(rescale=Rescale([slope, 0.0], domain=(0.1, 2.0))) for slope in (0.5, 0.6))
    assert one.config() != two.config() != kind().config()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_non_finite_indicator_computes_in_full_counts_and_warns_once(name, bad, monkeypatch, reference):
    healthy = toy.ToyRunner.modulated_input

    def broken(self):
        indicator = healthy(self)
        if self.e0[0, 0, 0, 0] == toy.ToyModel().e0(toy.SIGMAS[1])[0, 0, 0, 0]:
            indicator = indicator.clone()
            indicator[0, 4, 2] = bad
        return indicator

    monkeypatch.setattr(toy.ToyRunner, "modulated_input", broken)
    method = build(name, thresh=1e9, indicator="modulated_input")
    with pytest.warns(RuntimeWarning, match="not finite") as caught:
        _, fractions = toy.rollout(method, toy.Fxxx)
    assert [row[1] for row in fractions] == [1.0, 1.0, 1.0]
    assert [row[3] for row in fractions] == [0.0, 0.0, 0.0]  # a healthy distance again
    assert method.nonfinite_events == 6  # steps 1 and 2 of three chunks: the broken one is the reference of step 2
    assert len(caught) == 1
    json.dumps(method.decisions, allow_nan=False)


@pytest.mark.parametrize("name", ["reuse", *ADAPTIVE])
def test_a_non_finite_residual_is_never_reused(name, monkeypatch):
    healthy = toy.ToyRunner.full

    def broken(self):
        out = healthy(self)
        return out * float("nan") if len(self.model.calls) == 1 else out

    monkeypatch.setattr(toy.ToyRunner, "full", broken)
    method = build(name, **({"thresh": 1e9} if name in DIALLED else {}))
    with pytest.warns(RuntimeWarning, match="not finite"):
        _, fractions = toy.rollout(method, toy.Fxxx)
    assert fractions[0][1] == 1.0
    assert method.nonfinite_events >= 1


@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_batch_is_refused(name):
    model = toy.ToyModel()
    x = toy.noise(0).repeat(2, 1, 1)
    run = toy.ToyRunner(model, x, model.e0(1.0).repeat(2, 1, 1, 1))
    method = build(name)
    with pytest.raises(UserError, match="one video at a time"):
        method.step(toy.Step(x, run.e0, toy.GRID, 0, 0, True, 1.0), run)


@pytest.mark.parametrize("name", NAMES)
def test_one_decision_a_step_and_the_memory_of_the_state(name):
    options = {"thresh": 0.7} if class_of(name).dial == "thresh" else {}
    method = build(name, **options)
    _, fractions = toy.rollout(method, toy.Fxxx)
    assert len(method.decisions) == 4
    assert method.decisions[0] is None
    json.dumps(method.decisions, allow_nan=False)
    residual = toy.GRID.tokens * toy.WIDTH * 4
    if toy.mean(fractions) < 1:
        assert method.memory_bytes() >= residual
    if name in ("none", "euler"):
        assert method.memory_bytes() == method.estimate_bytes(toy.GRID.tokens * toy.WIDTH, 2, 4) == 0
    elif toy.mean(fractions) < 1:
        estimate = method.estimate_bytes(toy.GRID.tokens * toy.WIDTH, 2, 4)
        assert 0.5 * estimate <= method.memory_bytes() <= 2 * estimate
    method.begin_video()
    assert method.memory_bytes() == 0


PAPERS = {
    "teacache_paper": {"indicator": "e0"},
    "flowcache_paper": {"group_size": toy.GRID.frames},
    "motioncache_paper": {"distance": "chunk", "frame0": "same_step", "weight_norm": "max_rescale", "weight_floor": 0.6,
                          "temporal_consistency": True},
    "taylorseer_paper": {},
}  # fmt: skip


@pytest.mark.parametrize("name", PAPERS)
def test_a_papers_preset_is_the_method_with_its_papers_options(name):
    plain, paper = (build(n).config() for n in (name.removesuffix("_paper"), name))
    assert {key: value for key, value in paper.items() if plain[key] != value} == PAPERS[name]
    assert load(name).get("schedule") == {"teacache_paper": "FxxF", "flowcache_paper": "FxxF",
                                          "taylorseer_paper": "Fxxx"}.get(name)  # fmt: skip

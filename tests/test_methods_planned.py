"""The controls: random masks, the oracle, steps left out, and reuse confined to some chunks."""

from itertools import combinations

import pytest
import torch

from fastcache import api, hindsight
from fastcache.errors import UserError
from fastcache.methods.none import NoCache
from fastcache.methods.planned import Oracle, RandomMasks
from fastcache.methods.reuse import DirectReuse
from fastcache.sampler import Euler, FewStep
from fastcache.schedule import ceiling, next_step, parse_schedule

FRAMES = 9  # three chunks


@pytest.fixture(scope="module")
def model():
    return api.load_model("toy")


def make(model, method, schedule="Fxxx", seed=0, idx=0, sampler=None):
    return api.generate(model, "a", method, sampler, schedule, FRAMES, seed, idx)


def letters(video):
    return [chunk.letters for chunk in video.rollout.chunks]


def test_random_masks_keep_their_budget_and_follow_their_address_alone(model):
    first = make(model, RandomMasks(skip=1))
    assert all(text.count("R") == 1 for text in letters(first))
    assert letters(make(model, RandomMasks(skip=1))) == letters(first)
    used = RandomMasks(skip=1)
    make(model, used, idx=5)
    assert letters(make(model, used)) == letters(first)  # whatever was made before
    others = [letters(make(model, RandomMasks(skip=1), seed=seed)) for seed in range(1, 6)]
    assert any(other != letters(first) for other in others)


@pytest.mark.parametrize("skip", [0.25, 1.5, 2.75])
def test_random_masks_come_to_a_fractional_budget_on_average(skip):
    method = RandomMasks(skip=skip)
    method.forced = parse_schedule("Fxxx", 4)
    drawn = []
    for idx in range(400):
        method.address = (0, idx)
        drawn += [tuple(sorted(method.plan(chunk))) for chunk in range(3)]
    assert sum(map(len, drawn)) / len(drawn) == pytest.approx(skip, abs=0.06)
    assert {len(mask) for mask in drawn} <= {int(skip), int(skip) + 1}
    for size in {len(mask) for mask in drawn if mask}:  # no mask of a size is favoured
        kinds = [mask for mask in drawn if len(mask) == size]
        choices = list(combinations((1, 2, 3), size))
        assert all(kinds.count(mask) / len(kinds) == pytest.approx(1 / len(choices), abs=0.1) for mask in choices)


def test_random_masks_leave_forced_steps_alone(model):
    video = make(model, RandomMasks(skip=1), "FxFx")
    assert all(text[0] == text[2] == "F" and text.count("R") == 1 for text in letters(video))


@pytest.mark.parametrize("skip", [1, 2])
def test_no_fixed_mask_of_its_budget_is_nearer_to_the_full_computation_than_the_oracle(model, skip):
    full = make(model, NoCache(), "FFFF").rollout.latents

    def error(video):
        return float((video.rollout.latents - full).double().square().mean())

    found = make(model, Oracle(skip=skip))
    assert all(text.count("R") == skip and text[0] == "F" for text in letters(found))
    masks = ["F" + "".join("R" if i in reused else "F" for i in (1, 2, 3)) for reused in combinations((1, 2, 3), skip)]
    assert error(found) <= min(error(make(model, DirectReuse(), mask)) for mask in masks) * (1 + 1e-9)
    assert found.search_seconds > 0
    assert found.rollout.dit_seconds < found.search_seconds  # the search is no part of what the video cost


def test_the_oracle_takes_each_chunks_best_mask_behind_the_chunks_before_it():
    """A rollout whose error is known: chunk c is best under mask 1 + c, and a mistake stays where it is made."""
    wanted = [(1,), (2,), (3,)]

    class Made:
        def __init__(self, latents):
            self.latents = latents

    def run(method, frames, given):
        latents = torch.zeros(1, frames, 1, 1, 1)
        done = 0 if given is None else given.shape[1]
        if given is not None:
            latents[:, :done] = given
        for chunk in range(done // 3, frames // 3):
            if isinstance(method, Oracle):
                latents[:, chunk * 3 : chunk * 3 + 3] = float(method.masks[chunk] != wanted[chunk])
        return Made(latents)

    oracle = Oracle(skip=1)
    hindsight.search(oracle, run, parse_schedule("Fxxx", 4), 9, 3)
    assert oracle.masks == wanted


def test_the_oracle_need_not_search_where_there_is_one_mask():
    oracle = Oracle(skip=3)
    hindsight.search(oracle, None, parse_schedule("Fxxx", 4), 9, 3)
    assert oracle.masks == [(1, 2, 3)] * 3


@pytest.mark.parametrize(("schedule", "steps"), [("F-FF", (1000, 500, 250)), ("FF--", (1000, 750)), ("F---", (1000,))])
@pytest.mark.parametrize("kind", [FewStep, Euler])
def test_a_step_left_out_is_sampling_in_fewer_steps(model, schedule, steps, kind):
    video = make(model, NoCache(), schedule, sampler=kind())
    assert letters(video) == [schedule] * 3
    assert video.rollout.compute_fraction == pytest.approx(len(steps) / 4)
    assert 1 / video.rollout.forward_fraction == pytest.approx(ceiling(parse_schedule(schedule, 4)))
    fewer = make(model, NoCache(), "F" * len(steps), sampler=_Numbered(kind, steps))
    assert torch.equal(video.rollout.latents, fewer.rollout.latents)


def _Numbered(kind, steps):
    """A sampler of fewer steps whose noise is that of the same steps among all four."""
    made = kind(steps=steps)
    all_steps = kind()
    if kind is FewStep:
        made.noise_step = lambda i: 0 if i >= len(steps) else all_steps.steps.index(steps[i])
    return made


def test_next_step_passes_over_what_is_left_out():
    forced = parse_schedule("F-x-", 4)
    assert [next_step(forced, i) for i in (0, 2)] == [2, 4]


def test_reuse_can_be_confined_to_some_chunks(model):
    assert letters(make(model, DirectReuse(chunks=[1, 1]), "FRRF")) == ["FFFF", "FRRF", "FFFF"]
    assert letters(make(model, DirectReuse(chunks=[1, 9]), "FRRF")) == ["FFFF", "FRRF", "FRRF"]


@pytest.mark.parametrize("chunks", [[1], [2, 1], [-1, 0], [0, 1.5], "all", [True, 1], 3])
def test_chunks_that_are_none_are_refused(chunks):
    with pytest.raises(UserError, match="chunks"):
        DirectReuse(chunks=chunks)


@pytest.mark.parametrize("skip", [0.5, -1, float("nan"), "one"])
def test_budgets_that_are_none_are_refused(skip):
    with pytest.raises(UserError, match="skip"):
        Oracle(skip=skip)

"""TeaCache against an oracle in float64, and the faults of naive ports: range of the fit, precision, shared state."""

import numpy as np
import oracles
import pytest
import torch
import toy

from fastcache.errors import UserError
from fastcache.methods.base import rel_l1, rel_l1_per_token
from fastcache.methods.none import NoCache
from fastcache.methods.reuse import DirectReuse
from fastcache.methods.teacache import TeaCache
from fastcache.rescale import Rescale


def decisions(forced=toy.Fxxx, **options):
    """What each step computed, and what the oracle says it should have."""
    watch = oracles.Watch(TeaCache(**options))
    toy.rollout(watch, forced)
    return [row["tokens"] for row in watch.seen], oracles.groupwise(watch.seen, watch.method, toy.GRID)


@pytest.mark.parametrize("compare_with", ["previous", "cached"])
@pytest.mark.parametrize("rescale", [None, Rescale([0.5, 0.2, 0.1])], ids=["raw", "fit"])
@pytest.mark.parametrize("forced", [toy.FxxF, toy.FFxx, toy.Fxxx], ids=["FxxF", "FFxx", "Fxxx"])
def test_decisions_match_an_oracle(forced, rescale, compare_with):
    found = []
    for thresh in (0.4, 0.8, 1.3, 1.8):
        ours, expected = decisions(forced, thresh=thresh, rescale=rescale, compare_with=compare_with)
        assert ours == expected, thresh
        found.append(ours)
    assert found[0] != found[-1]


def test_the_two_references_decide_differently():
    grid = np.arange(0.9, 2.4, 0.2)
    assert any(decisions(thresh=t)[0] != decisions(thresh=t, compare_with="cached")[0] for t in grid)


def test_a_skipped_step_adds_the_last_computed_residual():
    kept = {}

    def check(step, run, result):
        if result.fraction == 1.0:
            kept["residual"] = result.x - step.x
        else:
            assert torch.equal(result.x, step.x + kept["residual"])
            kept["skipped"] = True

    toy.rollout(TeaCache(thresh=0.8), toy.Fxxx, on_step=check)
    assert kept["skipped"]


def test_e0_decides_alike_in_every_chunk():
    _, fractions = toy.rollout(TeaCache(thresh=0.3, indicator="e0"), toy.Fxxx)
    assert fractions[0] == fractions[1] == fractions[2]
    assert 0.25 < toy.mean(fractions) < 1


@pytest.mark.parametrize("compare_with", ["cache", None])
def test_an_unknown_reference_is_refused(compare_with):
    with pytest.raises(UserError, match="previous, cached"):
        TeaCache(compare_with=compare_with)


# G4: a fit that is negative in places must not pull the score down.


def test_thresh_zero_computes_everything_under_a_negative_fit():
    negative = [0.0, 0.0, 1.0, -5.0]
    _, fractions = toy.rollout(TeaCache(thresh=0.0, rescale=Rescale(negative)), toy.Fxxx)
    assert toy.mean(fractions) == 1.0
    raw = TeaCache(thresh=0.0, rescale=Rescale(negative, clamp=False))
    assert toy.mean(toy.rollout(raw, toy.Fxxx)[1]) == 0.25  # the switch gives the unclamped arithmetic back


def test_clamps_are_counted():
    method = TeaCache(thresh=0.5, rescale=Rescale([1.0, 0.0], domain=(0.0, 0.001)))
    toy.rollout(method, toy.Fxxx)
    assert method.clamps == 9


# G8: usable before anybody has told it of a video.


def test_reuse_works_from_its_constructor():
    model = toy.ToyModel()
    run = toy.ToyRunner(model, toy.noise(1), model.e0(1.0))
    result = DirectReuse().step(toy.Step(run.x, run.e0, toy.GRID, 0, 0, False, 1.0), run)
    assert result.fraction == 1.0


# G10: distances are subtracted in float32, whatever the tensors are in.


def test_distances_subtract_in_float32():
    reference = torch.linspace(0.9, 1.1, 4096).view(1, 64, 64).to(torch.bfloat16)
    current = (reference.float() * 1.003 + 0.001).to(torch.bfloat16)
    a, b = current.double().numpy(), reference.double().numpy()
    assert rel_l1(current, reference) == pytest.approx(np.abs(a - b).mean() / np.abs(b).mean(), rel=1e-5)
    expected = np.abs(a - b).mean(-1)[0] / np.abs(b).mean(-1)[0]
    np.testing.assert_allclose(rel_l1_per_token(current, reference).numpy(), expected, rtol=1e-5)
    huge = torch.full((1, 2, 2), 60000.0, dtype=torch.float16)
    assert rel_l1(-huge, huge) == pytest.approx(2.0)  # in half precision the difference would be infinite


# G13: one instance a cache_tag; two of them never see each other's state.


def test_instances_of_two_tags_do_not_mix():
    def alternate(method, other):
        """Steps of two guidance halves in turn, each with its own instance."""
        rows = []
        models = [toy.ToyModel(), toy.ToyModel()]
        for k, sigma in enumerate(toy.SIGMAS):
            for half, m in enumerate((method, other)):
                run = toy.ToyRunner(models[half], toy.noise(half, 0, k), models[half].e0(sigma))
                result = m.step(toy.Step(run.x, run.e0, toy.GRID, 0, k, k == 0, sigma), run)
                rows.append((half, result))
        return [[result for h, result in rows if h == half] for half in (0, 1)]

    together = alternate(TeaCache(thresh=1.5), TeaCache(thresh=1.5))
    alone = alternate(TeaCache(thresh=1.5), NoCache())[0], alternate(NoCache(), TeaCache(thresh=1.5))[1]
    for a, b in zip(together, alone, strict=True):
        assert [r.fraction for r in a] == [r.fraction for r in b]
        assert all(torch.equal(x.x, y.x) for x, y in zip(a, b, strict=True))
    assert any(r.fraction == 0.0 for r in together[0])

"""The debug mode that watches the ages of tokens: quiet where all is well, and it sees each way to break it."""

import pytest
import torch

from fastcache import api, forwards
from fastcache.kv_cache import VanillaKVCacheEngine
from fastcache.methods import motioncache
from fastcache.methods.flowcache import FlowCache
from fastcache.methods.motioncache import MotionCache
from fastcache.methods.reuse import DirectReuse
from fastcache.methods.taylorseer import TaylorSeer
from fastcache.methods.teacache import TeaCache
from fastcache.sampler import FewStep


@pytest.fixture(scope="module")
def model():
    return api.load_model("toy")


def roll(model, method, engine=VanillaKVCacheEngine, **options):
    model.dit.set_kv_engines(lambda branch: engine(debug=True))
    options = {"sampler": FewStep(frames_per_chunk=model.frames_per_chunk), "schedule": "Fxxx", "frames": 6} | options
    return api.generate(model, "a red circle stays", method, **options).rollout


PARTIAL = {"thresh": 1.0}


@pytest.mark.parametrize("method", [
    MotionCache(**PARTIAL), FlowCache(thresh=1.0), TeaCache(thresh=1.4), DirectReuse(), TaylorSeer(interval=2), None,
], ids=lambda m: m.name if m else "none")  # fmt: skip
def test_every_method_passes_and_computes_the_same(model, method):
    watched = roll(model, method)
    model.dit.set_kv_engines(lambda branch: VanillaKVCacheEngine())
    plain = api.generate(model, "a red circle stays", method, schedule="Fxxx", frames=6).rollout
    assert torch.equal(watched.latents, plain.latents)


def test_the_checks_are_of_partial_steps_too(model):
    assert "P" in "".join(chunk.letters for chunk in roll(model, MotionCache(**PARTIAL)).chunks)
    store = FewStep(frames_per_chunk=model.frames_per_chunk, store="reuse_last")
    assert "P" in "".join(chunk.letters for chunk in roll(model, MotionCache(**PARTIAL), sampler=store).chunks)


def test_without_debug_nothing_is_watched(model, monkeypatch):
    monkeypatch.setattr(forwards, "Ages", None)
    model.dit.set_kv_engines(lambda branch: VanillaKVCacheEngine())
    api.generate(model, "a red circle stays", MotionCache(**PARTIAL), frames=3)
    with pytest.raises(TypeError):
        roll(model, MotionCache(**PARTIAL))


def broken_refresh(spoil):
    def refresh(step, run, residual, tokens):
        out, kept, fraction = motioncache_refresh(step, run, residual, tokens)
        return (*spoil(out, residual, kept), fraction) if 0 < fraction < 1 else (out, kept, fraction)

    motioncache_refresh = motioncache.refresh
    return refresh


@pytest.mark.parametrize(("spoil", "says"), [
    (lambda out, old, new: (out, old), "residual of another step"),
    (lambda out, old, new: (out, new * 1.5), "residual changed by a step that did not compute it"),
    (lambda out, old, new: (out * 1.5, new), "not given back the residual"),
], ids=["stale", "touched", "lost"])  # fmt: skip
def test_a_residual_of_another_age_is_seen(model, monkeypatch, spoil, says):
    monkeypatch.setattr(motioncache, "refresh", broken_refresh(spoil))
    with pytest.raises(AssertionError, match=f"chunk 0, step 1: token .*{says}"):
        roll(model, MotionCache(**PARTIAL))


class Forgetful(VanillaKVCacheEngine):
    """Leaves the rows of selected tokens as they were."""

    def scatter_current_kv(self, module, index, k, v, *, cache_tag, start_token):
        return self.get_current_kv(module, cache_tag=cache_tag)


class Careless(VanillaKVCacheEngine):
    """Writes the rows of selected tokens, and one more."""

    def scatter_current_kv(self, module, index, k, v, *, cache_tag, start_token):
        super().scatter_current_kv(module, index, k, v, cache_tag=cache_tag, start_token=start_token)
        last = next(i for i in range(999) if i not in index.tolist())
        return super().scatter_current_kv(
            module, torch.tensor([last]), k[:, :1], v[:, :1], cache_tag=cache_tag, start_token=start_token
        )


@pytest.mark.parametrize(("engine", "says"), [
    (Forgetful, "K/V in block 0 of main of an earlier step"),
    (Careless, "K/V in block 0 of main changed by a step that did not compute it"),
])  # fmt: skip
def test_kv_of_another_age_are_seen(model, engine, says):
    with pytest.raises(AssertionError, match=says):
        roll(model, MotionCache(**PARTIAL), engine)

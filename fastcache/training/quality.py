"""How good a tiny model is, measured on prompts and seeds that training never drew."""

import numpy as np
import torch
from torch import Tensor

from fastcache.methods.none import NoCache
from fastcache.models.tiny import decode, encode_scene
from fastcache.models.video_model import VideoModel
from fastcache.noise import Noise
from fastcache.sample import rollout
from fastcache.sampler import STEPS, FewStep
from fastcache.world.measure import Sighting, look
from fastcache.world.scene import FRAMES, Scene, random_words, settle
from fastcache.world.words import read_prompt, say

UNSEEN = 990_000  # training seeds its data by (seed, 1 or more, iteration): single large integers never meet it
FEWER = {3: (1000, 500, 250), 2: (1000, 250), 1: (1000,)}


class _Recording(FewStep):
    """Keeps the clean latent that each step points to."""

    def x0(self, x: Tensor, flow: Tensor, i: int) -> Tensor:
        self.seen = getattr(self, "seen", [])
        self.seen.append((i, super().x0(x, flow, i)))
        return self.seen[-1][1]


def unseen(count: int) -> list[tuple[str, Scene]]:
    """Prompts in words and the scenes they settle to."""
    out = []
    for i in range(count):
        prompt = say(random_words(np.random.default_rng(UNSEEN + i)))
        out.append((prompt, settle(read_prompt(prompt), np.random.default_rng(UNSEEN + i))))
    return out


def generate(model: VideoModel, scene: Scene, seed: int, sampler: FewStep | None = None) -> Tensor:
    """Latents [1, FRAMES, C, H, W] of one full-compute rollout."""
    sampler = sampler or FewStep()
    forced = (True,) * sampler.num_steps
    draw = Noise(seed).of(0)
    return rollout(model, {"pos": NoCache()}, sampler, forced, encode_scene(scene)[None], FRAMES, draw).latents


def sightings(model: VideoModel, count: int = 64) -> list[Sighting]:
    """Every visible sprite of ``count`` unseen prompts at frames 1, 10 and 20."""
    found = []
    for i, (_, scene) in enumerate(unseen(count)):
        found += look(decode(generate(model, scene, UNSEEN + i)), scene)
    return found


def psnr(a: Tensor, b: Tensor) -> float:
    """PSNR in dB of two latents' decoded frames, one mean over everything."""
    error = (decode(a).astype(float) - decode(b).astype(float)) / 255
    return float(-10 * np.log10(np.square(error).mean()))


def step_table(model: VideoModel, count: int = 8) -> dict[str, list[float]]:
    """Do late steps matter? Mean PSNR of x0 after steps 1 to 3 against the final x0 of the chunk, for the first and
    for later chunks, and of 3-, 2- and 1-step sampling against 4 steps at equal seeds."""
    first, later = np.zeros(len(STEPS) - 1), np.zeros(len(STEPS) - 1)
    fewer = np.zeros(len(FEWER))
    for i, (_, scene) in enumerate(unseen(count)):
        sampler = _Recording()
        final = generate(model, scene, UNSEEN + i, sampler)
        steps = len(STEPS)
        chunks = [[x for _, x in sampler.seen[k : k + steps]] for k in range(0, len(sampler.seen), steps)]
        for step in range(steps - 1):
            first[step] += psnr(chunks[0][step], chunks[0][-1])
            early, last = (torch.cat([chunk[k] for chunk in chunks[1:]], 1) for k in (step, -1))
            later[step] += psnr(early, last)
        for k, list_ in enumerate(FEWER.values()):
            fewer[k] += psnr(generate(model, scene, UNSEEN + i, FewStep(steps=list_)), final)
    rounded = lambda values: [round(float(v) / count, 1) for v in values]  # noqa: E731
    return {"first_chunk": rounded(first), "later_chunks": rounded(later), "fewer_steps": rounded(fewer)}

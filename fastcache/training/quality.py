"""How good a tiny model is, measured on prompts and seeds that training never drew."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastcache.condition import Condition
from fastcache.methods.none import NoCache
from fastcache.models.tiny_latents import decode
from fastcache.models.tiny_shown import first_frame, shown_scene
from fastcache.models.video_model import VideoModel
from fastcache.noise import Noise
from fastcache.sample import rollout
from fastcache.sampler import STEPS, FewStep
from fastcache.world.measure import Sighting, look
from fastcache.world.render import draw_layout
from fastcache.world.scene import FRAMES, RADIUS, SIZE, Scene, random_words, settle, wander
from fastcache.world.words import read_prompt, say

UNSEEN = 990_000  # training seeds its data by (seed, 1 or more, iteration): single large integers never meet it
FEWER = {3: (1000, 500, 250), 2: (1000, 250), 1: (1000,)}


@dataclass(frozen=True)
class Case:
    """A prompt, the scene that must be seen, what the model is given, and the picture or control video it is shown."""

    prompt: str
    seed: int
    scene: Scene
    condition: Condition
    shown: np.ndarray | None = None  # uint8 [32, 32, 3] (I2V) or [FRAMES, 32, 32, 3] (VACE)


class _Recording(FewStep):
    """Keeps the clean latent that each step points to."""

    def x0(self, x: Tensor, flow: Tensor, i: int) -> Tensor:
        self.seen = getattr(self, "seen", [])
        self.seen.append((i, super().x0(x, flow, i)))
        return self.seen[-1][1]


def unseen(model: VideoModel, count: int) -> list[Case]:
    """Cases that training never drew: T2V words; I2V a drawn first frame; VACE controls, every second one swaying."""
    return [_case(model, UNSEEN + i) for i in range(count)]


def _case(model: VideoModel, seed: int) -> Case:
    prompt = say(random_words(np.random.default_rng(seed)))
    scene = settle(read_prompt(prompt), np.random.default_rng(seed))
    if model.needs == ("image",):
        image = first_frame(prompt, seed)
        return Case(prompt, seed, shown_scene(prompt, seed), model.condition(prompt, seed, FRAMES), image)
    if model.needs == ("control",):
        scene = wander(scene, np.random.default_rng((seed, 2))) if seed % 2 else scene
        control = (draw_layout(scene, np.arange(FRAMES)) * 255).round().astype(np.uint8)
        return Case(prompt, seed, scene, model.condition(prompt, seed, FRAMES, control=control), control)
    return Case(prompt, seed, scene, model.condition(prompt, seed, FRAMES))


def generate(model: VideoModel, case: Case, sampler: FewStep | None = None) -> Tensor:
    """Latents [1, FRAMES, C, H, W] of one full-compute rollout."""
    sampler = sampler or FewStep()
    forced = (True,) * sampler.num_steps
    draw = Noise(case.seed).of(0)
    return rollout(model, {"pos": NoCache()}, sampler, forced, case.condition, FRAMES, draw).latents


def sightings(model: VideoModel, count: int = 64) -> list[Sighting]:
    """Every visible sprite of ``count`` unseen prompts at frames 1, 10 and 20."""
    return [s for case in unseen(model, count) for s in look(decode(generate(model, case)), case.scene)]


def kept(model: VideoModel, count: int = 64) -> dict[str, float]:
    """What an I2V model keeps of the first frame, medians in dB over ``count`` unseen prompts.

    ``first``: PSNR of video frame 0 against the picture. ``background``: PSNR of frame 20 against it where no sprite
    is at either time, brightness matched by one factor, for the lamp of this world drifts.
    """
    first, ground = [], []
    for case in unseen(model, count):
        assert case.shown is not None
        video, picture = decode(generate(model, case)).astype(float) / 255, case.shown.astype(float) / 255
        first.append(_db(video[0] - picture))
        bare = _bare(case.scene, (0, FRAMES - 1))
        then, now = picture[bare], video[-1][bare]
        ground.append(_db(now - then * (now * then).sum() / max((then * then).sum(), 1e-9)))
    return {"first": float(np.median(first)), "background": float(np.median(ground))}


def _bare(scene: Scene, frames: tuple[int, ...]) -> np.ndarray:
    """Pixels [SIZE, SIZE] with no sprite within two pixels at any of the frames."""
    y, x = np.mgrid[0:SIZE, 0:SIZE] + 0.5
    bare = np.ones((SIZE, SIZE), bool)
    for sprite in scene.sprites:
        for cx, cy in sprite.track(np.array(frames)):
            bare &= np.hypot(x - cx, y - cy) > RADIUS * 1.1 + 2
    return bare


def psnr(a: Tensor, b: Tensor) -> float:
    """PSNR in dB of two latents' decoded frames, one mean over everything."""
    return _db((decode(a).astype(float) - decode(b).astype(float)) / 255)


def _db(error: np.ndarray) -> float:
    return float(-10 * np.log10(np.square(error).mean()))


def step_table(model: VideoModel, count: int = 8) -> dict[str, list[float]]:
    """Do late steps matter? Mean PSNR of x0 after steps 1 to 3 against the final x0 of the chunk, for the first and
    for later chunks, and of 3-, 2- and 1-step sampling against 4 steps at equal seeds."""
    first, later = np.zeros(len(STEPS) - 1), np.zeros(len(STEPS) - 1)
    fewer = np.zeros(len(FEWER))
    for case in unseen(model, count):
        sampler = _Recording()
        final = generate(model, case, sampler)
        steps = len(STEPS)
        chunks = [[x for _, x in sampler.seen[k : k + steps]] for k in range(0, len(sampler.seen), steps)]
        for step in range(steps - 1):
            first[step] += psnr(chunks[0][step], chunks[0][-1])
            early, last = (torch.cat([chunk[k] for chunk in chunks[1:]], 1) for k in (step, -1))
            later[step] += psnr(early, last)
        for k, list_ in enumerate(FEWER.values()):
            fewer[k] += psnr(generate(model, case, FewStep(steps=list_)), final)
    rounded = lambda values: [round(float(v) / count, 1) for v in values]  # noqa: E731
    return {"first_chunk": rounded(first), "later_chunks": rounded(later), "fewer_steps": rounded(fewer)}

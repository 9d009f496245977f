"""Train a bundled tiny model: python -m fastcache.train minutes=90 out=runs/tiny_t2v

Flow matching at the sampler's own noise levels, teacher forcing over whole 21-frame clips after a while of single
frames, and re-noised own predictions (what a few-step sampler feeds back). Resumable: the same command goes on from
the last checkpoint in ``out``. On several cores, one process a core, each drawing its
own batches, gradients averaged:
torchrun --nproc-per-node 2 -m fastcache.train minutes=90 out=runs/tiny_t2v
"""

import json
import os
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fastcache.errors import UserError
from fastcache.models.tiny import build, tiny_config
from fastcache.models.weights import read_weights
from fastcache.training.data import Batch, make_batch
from fastcache.training.init import go_on_from, init_tiny
from fastcache.training.muon import Muon
from fastcache.training.recipe import Recipe, flow_loss


class Trainer:
    def __init__(self, recipe: Recipe):
        self.recipe, self.out = recipe, Path(recipe.out)
        self.out.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(recipe.threads)
        torch.manual_seed(recipe.seed)
        if "WORLD_SIZE" in os.environ:
            dist.init_process_group("gloo")
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.dit = build(tiny_config(recipe.layout))
        init_tiny(self.dit)
        if recipe.start:
            go_on_from(self.dit, read_weights(recipe.start))
        inner = ("blocks.", "vace_blocks.")
        matrices = [p for n, p in self.dit.named_parameters() if n.startswith(inner) and p.ndim == 2]
        known = {id(p) for p in matrices}
        others = [p for p in self.dit.parameters() if id(p) not in known]
        self.optimizers = [
            Muon(matrices, lr=recipe.lr),
            torch.optim.AdamW(others, lr=recipe.adam_lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
        ]
        self.base_lr = [recipe.lr, recipe.adam_lr]
        self.average = {n: p.detach().clone() for n, p in self.dit.named_parameters()}
        self.iteration, self.seconds = 0, 0.0
        self.curve: list[list[float]] = []
        if (self.out / "checkpoint.pt").exists():
            self.load()

    def batch(self, rng: np.random.Generator, u: float, progress: float) -> Batch:
        layout = self.recipe.layout
        if progress < self.recipe.frames_until or u < self.recipe.single_frames:
            return make_batch(rng, 0, self.recipe.frames, layout)
        if u < self.recipe.single_frames + self.recipe.full_clips:
            return make_batch(rng, 7, 1, layout)
        return make_batch(rng, 2, 4, layout)

    def run(self, until: int | None = None) -> None:
        """Train to the end of the budget, or to iteration ``until`` if that comes first."""
        budget, saved, recent, took = 60 * self.recipe.minutes, time.perf_counter(), [], 0.0
        while self.seconds < budget and (until is None or self.iteration < until):
            begin = time.perf_counter()
            progress = self.seconds / budget
            rng = np.random.default_rng((self.recipe.seed, 1 + self.rank, self.iteration))
            generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
            kind, again = np.random.default_rng((self.recipe.seed, 0, self.iteration)).random(2)  # the same in all
            batch = self.batch(rng, kind, progress)
            renoise = progress > self.recipe.frames_until / 2 and again < self.recipe.renoise
            loss = flow_loss(self.dit, batch, generator, self.recipe, renoise)
            loss.backward()
            self.seconds += self.share(took)  # of the iteration before: the step below still lies ahead
            torch.nn.utils.clip_grad_norm_(self.dit.parameters(), 1.0)
            self.update(progress)
            recent.append(loss.item())
            self.iteration += 1
            took = time.perf_counter() - begin
            if self.iteration % 50 == 0 and self.rank == 0:
                self.curve.append([self.iteration, round(self.seconds, 1), round(float(np.mean(recent)), 5)])
                print(*self.curve[-1], flush=True)
                recent.clear()
            if time.perf_counter() - saved > self.recipe.save_every:
                self.save()
                saved = time.perf_counter()
        self.save()

    def share(self, seconds: float) -> float:
        """Average gradients and the clock over all processes, so that every one takes the same step."""
        if not dist.is_initialized():
            return seconds
        grads = [p.grad for p in self.dit.parameters() if p.grad is not None]
        flat = torch.cat([g.flatten() for g in grads] + [torch.tensor([seconds])])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for grad, part in zip(grads, flat[:-1].split([g.numel() for g in grads]), strict=True):
            grad.copy_(part.view_as(grad))
        return float(flat[-1])

    def update(self, progress: float) -> None:
        warm = min(1.0, (self.iteration + 1) / 40)
        decay = min(1.0, (1 - progress) / (1 - self.recipe.decay_from)) * 0.98 + 0.02
        for optimizer, lr in zip(self.optimizers, self.base_lr, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = lr * warm * decay
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        keep = min(self.recipe.ema, 1 - 1 / (self.iteration + 2))
        with torch.no_grad():
            for name, p in self.dit.named_parameters():
                self.average[name].lerp_(p, 1 - keep)

    def save(self) -> None:
        if self.rank:
            return
        state = {
            "dit": self.dit.state_dict(),
            "average": self.average,
            "optimizers": [o.state_dict() for o in self.optimizers],
            "iteration": self.iteration,
            "seconds": self.seconds,
            "curve": self.curve,
            "recipe": asdict(self.recipe),
        }
        torch.save(state, self.out / "checkpoint.tmp")
        (self.out / "checkpoint.tmp").replace(self.out / "checkpoint.pt")
        (self.out / "curve.json").write_text(json.dumps(self.curve))

    def load(self) -> None:
        state = torch.load(self.out / "checkpoint.pt", weights_only=True)
        self.dit.load_state_dict(state["dit"])
        self.average = state["average"]
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.iteration, self.seconds, self.curve = state["iteration"], state["seconds"], state["curve"]


def main(argv: list[str] | None = None) -> None:
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(words):
        print(__doc__, "\nKeys and their defaults:\n", *(f"  {f.name}={f.default}\n" for f in fields(Recipe)), sep="")
        return
    given = OmegaConf.from_dotlist(words)
    try:
        recipe = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Recipe), given))
    except OmegaConfBaseException as error:
        known = ", ".join(field.name for field in fields(Recipe))
        sys.exit(f"{str(error).splitlines()[0]}; the keys are {known}, e.g. minutes=90 out=runs/tiny_t2v")
    assert isinstance(recipe, Recipe)
    try:
        Trainer(recipe).run()
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

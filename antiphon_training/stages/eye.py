"""The vision stage: the vision encoder learns to name the scene of a picture, without the language model."""

import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon_training.corpus.pictures import SCENES, PictureSet
from antiphon_training.corpus.recipe import LANGUAGE, VISION
from antiphon_training.stages.precision import mixed
from antiphon_training.stages.rounds import Bar, save
from inference_service.models.vision_encoder import Resampler, VisionEncoder

_HELD_OUT = 400
"""Pictures that are held out to report the accuracy, at most a tenth."""


class NamingEye(nn.Module):
    """The vision parts of the checkpoint, under their names there, with a head that only this stage uses."""

    def __init__(self) -> None:
        super().__init__()
        self.vpm = VisionEncoder(VISION)
        self.resampler = Resampler(VISION, LANGUAGE.hidden_size)
        self.name = nn.Linear(LANGUAGE.hidden_size * VISION.queries, len(SCENES))

    def forward(self, pixels: Tensor) -> Tensor:
        scores: Tensor = self.name(self.resampler(self.vpm(pixels)).flatten(1))
        return scores

    def eye(self) -> dict[str, Tensor]:
        """Return the tensors that later stages use."""
        return {k: v for k, v in self.state_dict().items() if not k.startswith("name.")}


def train(album_path: Path, out: Path, seconds: float, batch: int = 64, peak: float = 2e-3) -> None:
    """Train for `seconds` of wall time and write the encoder's weights to `out`."""
    torch.set_num_threads(1)
    torch.manual_seed(5)
    rng = np.random.default_rng(5)
    album = PictureSet(album_path)
    pixels, labels = torch.from_numpy(album.pixels), torch.from_numpy(album.labels)
    aside = min(_HELD_OUT, len(pixels) // 10)
    model = NamingEye()
    bar = Bar("eye", seconds)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.02, betas=(0.9, 0.98))
    start, step, average = time.monotonic(), 0, 0.0
    while (elapsed := time.monotonic() - start) < seconds:
        for settings in optimizer.param_groups:
            settings["lr"] = peak * min(1, step / 100 + 0.02) * (1 - elapsed / seconds * 0.95)
        rows = torch.from_numpy(rng.integers(aside, len(pixels), batch))
        shown = pixels[rows].flip(2) if rng.random() < 0.5 else pixels[rows]
        with mixed():
            scores = model(shown)
        loss = F.cross_entropy(scores.float(), labels[rows], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        average = loss.item() if step == 1 else 0.97 * average + 0.03 * loss.item()
        bar.move(elapsed)
        if step % 100 == 0:
            with torch.no_grad():
                right = (model(pixels[:aside]).argmax(1) == labels[:aside]).float().mean()
            bar.note(step, elapsed, f"loss {average:.3f}  unseen right {right:.3f}")
    bar.close()
    save(model.eye(), out)

"""What the messages of answers hold."""

import numpy as np
import pytest

from inference_service.interface.engine import Piece
from inference_service.rpc.messages import replies


@pytest.mark.parametrize(
    ("samples", "sent"),
    [([0.5, -1.0], [0.5, -1.0]), ([np.nan, np.inf, -np.inf, 2.0], [0.0, 1.0, -1.0, 1.0])],
    ids=["within bounds", "beyond them"],
)
def test_output_audio_is_finite_and_bounded(samples: list[float], sent: list[float]) -> None:
    message = replies.piece(Piece(1, audio=np.array(samples, np.float32)), 24_000)
    assert np.frombuffer(message.audio.data, "<f4").tolist() == sent

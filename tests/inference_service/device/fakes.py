"""A runtime whose tensors are fakes on `cuda:1`: shapes, types and devices without memory or numbers.

A product of tensors on two devices raises, and so do `.item()`, `bool()` and `.numpy()`. Copies that do not
go through `device.transfer` are noted. Wrong types of a product are not noticed. What the host asks
for is made up: zeros.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.overrides import TorchFunctionMode

from benchmarks.full_size.folder import voice
from benchmarks.full_size.sizes import TINY_FOLDER, Size
from inference_service.checkpoints.minicpmo import MiniCPMOCheckpoint
from inference_service.device import compiling, transfer
from inference_service.device.graph import Graph
from inference_service.device.paged import AttentionBackend, gathered
from inference_service.device.side_stream import Arrival, SideStream
from inference_service.device.transfer import Array
from inference_service.engine.batch import decoder
from inference_service.families import minicpmo, minicpmo_voice
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.setups import VoiceReference
from inference_service.models.minicpmo.model import MiniCPMO
from inference_service.models.token2wav.flow import VoicePrompt, euler_steps
from inference_service.models.token2wav.model import DEFAULT_STEPS, Token2Wav
from inference_service.models.token2wav.noise import SourceNoise, flow_noise
from inference_service.models.tokenizer import Tokenizer
from inference_service.session.kinds.components import SpeechCodes, SpeechComponents

DEVICE = torch.device("cuda:1")
MARKS = [
    pytest.mark.filterwarnings(
        "ignore:Accessing the data pointer of FakeTensor", "ignore:divide by zero encountered"
    ),
    # With CUDA torch would look for the second GPU.
    pytest.mark.skipif(torch.cuda.is_available(), reason="fakes stand for a GPU where there is none"),
]
_HOST: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.int32: np.int32}


class Fakes:
    """Fake tensors on `DEVICE`, and what stands in for CUDA's own calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.uploads = self.downloads = 0
        self.moves: list[str] = []
        """Tensors that `to` has moved to another device."""
        self._regions = 0
        """Captured regions that are under way."""
        begin = Graph.__init__

        def watched(graph: Graph[Any], device: torch.device, compute: Any, pool: Any = None) -> None:
            begin(graph, device, self._region(compute), pool)

        monkeypatch.setattr(Graph, "__init__", watched)
        for name in ("upload", "download"):
            real = getattr(transfer, name)
            for module in list(sys.modules.values()):
                if getattr(module, name, None) is real:
                    monkeypatch.setattr(module, name, getattr(self, name))
        monkeypatch.setattr(Graph, "__call__", lambda graph: graph._compute())
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
        monkeypatch.setattr(
            decoder, "choose_backend", lambda *_: AttentionBackend("gathered", "fakes", gathered)
        )
        monkeypatch.setattr(compiling, "_chosen", "off")  # fakes have nothing that could be compiled
        monkeypatch.setattr(SideStream, "__init__", lambda stream, device: None)
        monkeypatch.setattr(SideStream, "call", lambda stream, compute: compute())
        monkeypatch.setattr(SideStream, "_sent", lambda stream, made: self.arrivals(made))

    def _region(self, compute: Callable[[], Any]) -> Callable[[], Any]:
        """Return what a region computes, which copies nothing to the device or from it."""

        @wraps(compute)
        def within() -> Any:
            self._regions += 1
            try:
                return compute()
            finally:
                self._regions -= 1

        return within

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Run the body as the engine's thread would."""
        with self._mode, _Unguarded(self.moves), torch.inference_mode():
            yield

    def moved(self, module: nn.Module) -> nn.Module:
        """Return a module whose parameters and buffers are fakes on the device, as `to` moves them."""
        before = torch.__future__.get_overwrite_module_params_on_conversion()
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            with self._mode:
                return module._apply(lambda it: torch.empty(it.shape, dtype=it.dtype, device=DEVICE))
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(before)

    def upload(self, device: torch.device, *arrays: Array) -> list[Tensor]:
        """Stand in for `transfer.upload`."""
        assert device == DEVICE
        assert not self._regions, "a captured region uploads: a replay would not see other numbers"
        self.uploads += 1
        return [
            torch.empty(array.shape, dtype=torch.from_numpy(array[:0]).dtype, device=device)
            for array in map(np.ascontiguousarray, arrays)
        ]

    def download(self, *tensors: Tensor) -> list[Array]:
        """Stand in for `transfer.download`: zeros."""
        assert not self._regions, "a captured region downloads: a capture may wait for nothing"
        self.downloads += 1
        assert all(it.device == DEVICE and it.element_size() == 4 for it in tensors)
        return [np.zeros(tuple(it.shape), _HOST[it.dtype]) for it in tensors]

    def arrivals(self, tensors: list[Tensor]) -> list[Arrival]:
        """Stand in for sounds that come to the host."""
        assert all(it.device == DEVICE for it in tensors)
        with unset_fake_temporarily():
            return [Arrival(torch.zeros(tuple(it.shape))) for it in tensors]


def duplex_runtime(fakes: Fakes, size: Size, slots: int, context_limit: int) -> DuplexRuntime:
    """Return a MiniCPM-o in bfloat16 that has made its first sound."""
    model = fakes.moved(MiniCPMO.hollow(size.config, speech=True).bfloat16().eval())
    with torch.device("meta"):
        token2wav = Token2Wav(size.vocoder, noise=flow_noise(), source_noise=SourceNoise.drawn(8))
    token2wav = fakes.moved(token2wav.eval())
    assert isinstance(model, MiniCPMO)
    assert isinstance(token2wav, Token2Wav)
    assert model.tts is not None
    checkpoint = MiniCPMOCheckpoint(size.name, model, Tokenizer.load(TINY_FOLDER), size.config, ())
    mouth = minicpmo_voice.Token2WavMouth(token2wav, voice(size.vocoder))
    own = replace(voice(size.vocoder), salt=b"own")
    speech = SpeechComponents(model.tts, mouth, minicpmo.SPEECH_CAPACITY, prompts=_Voices(own))
    euler_steps(DEFAULT_STEPS)  # numbers of the host
    with fakes.on_device():
        made = DuplexRuntime(minicpmo.components(checkpoint, speech, context_limit=context_limit), slots)
        # As in the warm-up: the first sound moves what is the same for all sounds.
        mouth.say([SpeechCodes(mouth.initial_state(None, 0), [0] * 25, is_last=True)])
    return made


class _Voices:
    """Stands in for the reader of recordings: every one is of the same voice."""

    def __init__(self, own: VoicePrompt) -> None:
        self._own = own

    def prompt(self, reference: VoiceReference, salt: bytes = b"") -> VoicePrompt | None:
        """Return the voice of a recording; None for the model's own."""
        return None if reference.is_unset else self._own


class _Unguarded(TorchFunctionMode):
    """Calls operators instead of methods that switch to the tensor's device first: there is none."""

    def __init__(self, moves: list[str]) -> None:
        super().__init__()
        self._moves = moves

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        tensor = args[0] if args and isinstance(args[0], Tensor) else None
        aten = torch.ops.aten
        if func is Tensor.to and tensor is not None:
            wanted: dict[str, Any] = {k: v for k, v in named.items() if k in ("device", "dtype")}
            for it in args[1:]:
                if isinstance(it, Tensor):
                    wanted = {"device": it.device, "dtype": it.dtype}
                elif isinstance(it, torch.device | torch.dtype):
                    wanted["device" if isinstance(it, torch.device) else "dtype"] = it
            if torch.device(wanted.get("device", tensor.device)) != tensor.device:
                self._moves.append(f"{tensor.device} to {wanted['device']}")
            elif wanted.get("dtype", tensor.dtype) == tensor.dtype:
                return tensor
            return aten._to_copy.default(tensor, **wanted)
        if func in (Tensor.tolist, Tensor.numpy) and not isinstance(tensor, FakeTensor):
            with unset_fake_temporarily():  # numbers that are on the host
                return func(tensor)
        if tensor is None or tensor.device.type != "cuda":
            return func(*args, **named)
        if func is Tensor.cpu:
            self._moves.append(f"{tensor.device} to cpu")
        if func is Tensor.contiguous:
            return _contiguous(tensor)
        if func in (torch.conv1d, torch.conv_transpose1d):  # their fakes call `contiguous`
            return func(_contiguous(tensor), *args[1:], **named)
        if func is Tensor.__invert__:
            return aten.bitwise_not.default(tensor)
        if func is Tensor.copy_:
            return aten.copy_.default(tensor, args[1])
        if func is Tensor.__getitem__:
            return _part(tensor, args[1])
        if func is Tensor.__setitem__:
            part = _part(tensor, args[1])
            if isinstance(args[2], Tensor):
                aten.copy_.default(part, args[2])
            else:
                part.fill_(args[2])
            return None
        return func(*args, **named)


def _contiguous(tensor: Tensor) -> Tensor:
    if tensor.is_contiguous():
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _part(tensor: Tensor, index: Any) -> Tensor:
    """Return `tensor[index]`."""
    aten, parts = torch.ops.aten, list(index) if isinstance(index, tuple) else [index]
    if any(it is Ellipsis for it in parts):
        at = next(i for i, it in enumerate(parts) if it is Ellipsis)
        taken = sum(it is not None for it in parts) - 1
        parts[at : at + 1] = [slice(None)] * (tensor.dim() - taken)
    dim, chosen = 0, list[Tensor | None]()
    for it in parts:
        if it is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(it, slice):
            tensor = aten.slice.Tensor(tensor, dim, it.start, it.stop, 1 if it.step is None else it.step)
        elif isinstance(it, Tensor):
            chosen += [None] * (dim - len(chosen)) + [it]
        else:
            tensor = aten.select.int(tensor, dim, it)
            continue
        dim += 1
    return aten.index.Tensor(tensor, chosen) if chosen else tensor

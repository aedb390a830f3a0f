"""Wrong arguments of kernels raise an exception instead of reading or writing other memory."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Qwen3Config, Qwen3Model

from inference_service.engine.batch.draw import Draw
from inference_service.kernels.layers import LONGEST_HEAD, Layers, PagedCacheView
from inference_service.kernels.packed_linear import pack_linears
from inference_service.kernels.panels import Panels
from inference_service.kernels.selection import usable
from inference_service.kernels.tensors import address
from inference_service.media.mel import BANDS, CONTEXT, FFT, HOP, WINDOW

if usable("native"):
    from inference_service.kernels import draw, linear, mel, native

pytestmark = pytest.mark.skipif(not usable("native"), reason="there was no compiler at installation")

HUGE, TOO_LARGE = 2**46, 2**62
"""Too large beside another size, and by itself."""
HEADS, KV, HEAD, PAGES, HIDDEN = 4, 2, 16, 3, 32


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        (
            torch.zeros(3, 4, dtype=torch.float64),
            TypeError,
            "takes torch.float32 on the CPU, not torch.float64",
        ),
        (torch.zeros(3, 4, dtype=torch.bfloat16), TypeError, "torch.bfloat16"),
        (torch.zeros(3, 4, device="meta"), TypeError, "on meta"),
        (torch.zeros(3, 3), ValueError, r"shape \[3, 4\], not \[3, 3\]"),
        (torch.zeros(12), ValueError, r"not \[12\]"),
        (torch.zeros(4, 3).t(), ValueError, "contiguous"),
        (torch.zeros(3, 8)[:, ::2], ValueError, "contiguous"),
        (torch.zeros(1, 4).expand(3, 4), ValueError, "contiguous"),
    ],
)
def test_address_wrong_tensor_is_refused(tensor: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        address(tensor, torch.float32, (3, 4))


def test_address_right_tensor_is_where_it_begins() -> None:
    whole = torch.zeros(5, 4)
    assert address(whole[2:], torch.float32, (3, 4)) == whole.data_ptr() + 2 * 4 * 4


@pytest.mark.parametrize(
    ("weight", "bias", "message"),
    [
        *((torch.zeros(70, 24), torch.zeros(n), r"shape \[70\]") for n in (69, 71, (70, 1), ())),
        *((torch.zeros(n), None, "Weights are") for n in (70, (70, 2, 12), (70, 0))),
    ],
)
def test_panels_of_impossible_shapes_are_refused(weight: Tensor, bias: Tensor | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Panels(weight, bias)


@pytest.mark.parametrize(
    "numbers",
    [
        *((-1, 70, 24), (3, -70, 24), (3, 70, -24), (HUGE, HUGE, 24), (HUGE, 70, HUGE), (3, HUGE, HUGE)),
        *((TOO_LARGE, 70, 0), (-1, 24), (70, -1), (HUGE, 24), (2**63 - 1, 0), (70, HUGE)),
    ],
)
def test_linear_and_pack_sizes_that_no_tensor_has_are_refused(numbers: tuple[int, ...]) -> None:
    at = torch.zeros(24).data_ptr()
    with pytest.raises(ValueError, match="there is no tensor of shape"):
        linear.multiply(at, at, 0, at, *numbers) if len(numbers) == 3 else linear.pack(at, at, *numbers)


@pytest.mark.parametrize("missing", [0, 1, 3])
@pytest.mark.parametrize("nowhere", [0, -8])
def test_linear_without_an_address_is_refused(missing: int, nowhere: int) -> None:
    held = torch.zeros(2048)
    numbers = [held.data_ptr()] * 4
    numbers[missing] = nowhere
    with pytest.raises(ValueError, match="no address"):
        linear.multiply(*numbers, 2, 16, 24)
    if missing < 2:
        with pytest.raises(ValueError, match="no address"):
            linear.pack(*numbers[:2], 16, 24)


def test_linear_number_beyond_64_bits_is_refused() -> None:
    with pytest.raises(OverflowError):
        linear.multiply(2**64, 0, 0, 0, 0, 0, 0)


class Stage:
    """Arguments of `native.turn` and `native.attend` that are right, and whose tensors stay."""

    def __init__(self, spans: list[tuple[int, ...]], table: list[int], rows: int = 5) -> None:
        self.spans, self.table = torch.tensor(spans), torch.tensor(table, dtype=torch.int32)
        self.keys, self.values = torch.zeros(2, KV, PAGES * 16, HEAD)
        self.projected = torch.zeros(rows, HEADS + 2 * KV, HEAD)
        self.angles, self.queries = torch.zeros(rows, HEAD), torch.zeros(rows, HEADS, HEAD)
        self.seen = torch.zeros_like(self.queries)
        self.numbers = {
            "keys": self.keys.data_ptr(), "values": self.values.data_ptr(), "spans": self.spans.data_ptr(),
            "table": self.table.data_ptr(), "count": len(spans), "entries": len(table), "rows": rows,
            "heads": HEADS, "kv": KV, "head": HEAD, "stride": PAGES * 16 * HEAD,
        }  # fmt: skip

    def turn(self, **others: int) -> None:
        angles, numbers = self.angles.data_ptr(), (self.numbers | others).values()
        native.turn(1e-6, self.projected.data_ptr(), 0, angles, angles, self.queries.data_ptr(), *numbers, 0)

    def attend(self, window: int = 0, **others: int) -> None:
        numbers = (self.numbers | others).values()
        native.attend(1.0, self.queries.data_ptr(), self.seen.data_ptr(), *numbers, window, 0)


SPANS = [(0, 3, 0, 0, 20), (3, 2, 2, 1, 3)]
TABLE = [2, 0, 1]
Call = Callable[..., None]


@pytest.fixture(params=["turn", "attend"])
def call(request: pytest.FixtureRequest) -> Callable[[Stage], Call]:
    """Both kernels that follow spans and pages."""
    name: str = request.param
    return lambda stage: getattr(stage, name)


def test_right_places_are_taken(call: Callable[[Stage], Call]) -> None:
    call(Stage(SPANS, TABLE))()


@pytest.mark.parametrize("page", [-1, PAGES, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("at", range(3))
def test_page_that_the_cache_lacks_is_refused(call: Callable[[Stage], Call], page: int, at: int) -> None:
    table = TABLE.copy()
    table[at] = page
    with pytest.raises(IndexError, match=f"page {page} is not among the 3 of the cache"):
        call(Stage(SPANS, table))()


@pytest.mark.parametrize(
    ("message", "spans"),
    [
        (
            "rows are not among",
            [
                (4, 2, 2, 0, 3),
                (-1, 2, 2, 0, 3),
                (3, -1, 2, 0, 3),
                (3, 2**62, 2, 0, 2**62),
                (2**62, 2, 2, 0, 3),
            ],
        ),
        (
            "context does not include",
            [(3, 2, 2, 0, 1), (3, 2, 2, -1, 3), (3, 2, 2, 2, 3), (3, 2, 2, 0, -(2**63))],
        ),
        (
            "pages are not in the table",
            [(3, 2, n, 0, 3) for n in (3, -1, 2**62)] + [(3, 2, 2, 0, n) for n in (17, 2**63 - 1)],
        ),
    ],
)
def test_span_out_of_bounds_is_refused(
    call: Callable[[Stage], Call], message: str, spans: list[tuple[int, ...]]
) -> None:
    for span in spans:
        with pytest.raises(IndexError, match=f"span 1: its {message}"):
            call(Stage([SPANS[0], span], TABLE))()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("heads", (0, -4, 3)),
        ("kv", (0, -2)),
        ("head", (0, 8, -16, LONGEST_HEAD + 16)),
        ("rows", (-1, HUGE)),
        ("stride", (-16, HUGE, PAGES * 16 * HEAD + 1)),
        ("count", (-1, HUGE)),
        ("entries", (-1, HUGE)),
        ("keys", (0,)),
        ("values", (0,)),
        ("spans", (0,)),
        ("table", (0, -4)),
    ],
)
def test_places_of_impossible_sizes_are_refused(
    call: Callable[[Stage], Call], name: str, values: tuple[int, ...]
) -> None:
    for value in values:
        with pytest.raises(ValueError):
            call(Stage(SPANS, TABLE))(**{name: value})


def test_negative_window_is_refused() -> None:
    with pytest.raises(ValueError, match="a window is 0 or more"):
        Stage(SPANS, TABLE).attend(window=-1)


def test_calls_of_native_without_an_address_are_refused() -> None:
    stage = Stage(SPANS, TABLE)
    at, places = stage.angles.data_ptr(), stage.numbers.values()
    for missing in (0, 2, 3, 4):
        numbers = [at, 0, at, at, at]
        numbers[missing] = 0
        with pytest.raises(ValueError, match="no address"):
            native.turn(1e-6, *numbers, *places, 0)
    for numbers in (
        *((0, 0, 0, at, at), (at, 0, 0, 0, at), (at, 0, 0, at, 0)),
        *((at, at, 0, at, at), (at, -4, 0, at, at)),
    ):
        with pytest.raises(ValueError, match="no address"):
            native.norm(1e-6, *numbers, 2, 16, 0)
    for pair in ((0, at), (at, 0)):
        with pytest.raises(ValueError, match="no address"):
            native.attend(1.0, *pair, *places, 0, 0)
        with pytest.raises(ValueError, match="no address"):
            native.gate(*pair, 2, 16, 0)


@pytest.mark.parametrize("numbers", [(-1, 16), (2, -16), (HUGE, 16), (16, TOO_LARGE)])
def test_norm_and_gate_sizes_that_no_tensor_has_are_refused(numbers: tuple[int, int]) -> None:
    at = torch.zeros(128).data_ptr()
    with pytest.raises(ValueError, match="no tensor of shape"):
        native.norm(1e-6, at, 0, 0, at, at, *numbers, 0)
    with pytest.raises(ValueError, match="no tensor of shape"):
        native.gate(at, at, *numbers, 0)
    with pytest.raises(ValueError, match="multiple of 16, not 24"):
        native.gate(at, at, 2, 24, 0)


@pytest.mark.parametrize("name", ["norm", "gate", "turn", "attend", "multiply"])
@pytest.mark.parametrize("given", [(), (1.0,), (1.0, 2, 3), ("a",) * 7, ("a",) * 20])
def test_calls_with_other_arguments_are_refused(name: str, given: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        getattr(linear if name == "multiply" else native, name)(*given)


class Backbone:
    """A tiny model of common layers, and arguments of `Layers.run` that are right."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        config = Qwen3Config(
            hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=2, num_attention_heads=HEADS,
            num_key_value_heads=KV, head_dim=HEAD, vocab_size=8,
        )  # fmt: skip
        self.layers = Layers(pack_linears(Qwen3Model(config).eval()))
        keys, values = torch.zeros(2, 2, KV, PAGES * 16, HEAD)
        spans, table = torch.tensor([(0, 5, 0, 0, 20)]), torch.tensor([1, 0], dtype=torch.int32)
        self.rows, self.positions = torch.randn(5, HIDDEN), torch.arange(5)
        self.view = PagedCacheView(keys, values, spans, table)

    def run(self, **others: Any) -> Tensor:
        asked = others.pop("asked", None)
        rows, positions = others.pop("rows", self.rows), others.pop("positions", self.positions)
        return self.layers.run(rows, positions, replace(self.view, **others), asked)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return Backbone()


@torch.inference_mode()
def test_layers_take_right_tensors(backbone: Backbone) -> None:
    assert backbone.run().shape == (5, HIDDEN)
    assert backbone.run(asked=torch.tensor([4])).shape == (1, HIDDEN)


def slab(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(*shape, dtype=dtype)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("others", "error"),
    [
        ({"rows": slab(5, HIDDEN, dtype=torch.bfloat16)}, ValueError),
        ({"rows": slab(5, HIDDEN - 1)}, ValueError),
        ({"rows": slab(5 * HIDDEN)}, ValueError),
        ({"positions": torch.arange(4)}, ValueError),
        ({"positions": torch.arange(6)}, ValueError),
        ({"asked": torch.arange(6)}, ValueError),
        ({"keys": slab(2, KV, PAGES * 16, HEAD, dtype=torch.bfloat16)}, TypeError),
        ({"keys": slab(2, KV, PAGES * 16, HEAD).to("meta")}, TypeError),
        ({"keys": slab(1, KV, PAGES * 16, HEAD)}, ValueError),
        ({"keys": slab(2, 1, PAGES * 16, HEAD)}, ValueError),
        ({"keys": slab(2, KV, PAGES * 16, HEAD - 1)}, ValueError),
        ({"keys": slab(2, PAGES * 16, KV, HEAD).transpose(1, 2)}, ValueError),
        ({"keys": slab(2, KV, 17, HEAD), "values": slab(2, KV, 17, HEAD)}, ValueError),
        ({"values": slab(2, KV, 16, HEAD)}, ValueError),
        ({"spans": torch.tensor([(0, 5, 0, 0, 20)], dtype=torch.int32)}, TypeError),
        ({"spans": torch.tensor([(0, 5, 0, 0)])}, ValueError),
        ({"spans": torch.tensor([(0, 5, 0, 0, 20)]).t().contiguous().t().expand(2, 5)}, ValueError),
        ({"spans": torch.tensor([(0, 6, 0, 0, 20)])}, IndexError),
        ({"spans": torch.tensor([(0, 5, 0, 0, 33)])}, IndexError),
        ({"table": torch.tensor([1, 0])}, TypeError),
        ({"table": torch.tensor([1, PAGES], dtype=torch.int32)}, IndexError),
        ({"table": torch.tensor([1, -1], dtype=torch.int32)}, IndexError),
        ({"table": torch.tensor([1, 9, 0, 9], dtype=torch.int32)[::2]}, ValueError),
    ],
)
def test_layers_refuse_tensors_that_do_not_fit(
    backbone: Backbone, others: dict[str, Tensor], error: type[Exception]
) -> None:
    with pytest.raises(error):
        backbone.run(**others)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["_project", "_gates", "_out", "down"])
@pytest.mark.parametrize(
    "spoil", [Tensor.double, lambda it: it[:-1], lambda it: it[:, :-1], lambda it: it.t().contiguous().t()]
)
def test_layers_refuse_projections_that_do_not_fit(name: str, spoil: Callable[[Tensor], Tensor]) -> None:
    """As of a module that was changed after the layers were made."""
    backbone = Backbone()
    layer = backbone.layers._layers[0]
    project = getattr(layer, name)
    setattr(layer, name, lambda rows: spoil(project(rows)))
    with pytest.raises((TypeError, ValueError)):
        backbone.run()


@torch.inference_mode()
def test_layers_refuse_angles_that_do_not_fit() -> None:
    backbone = Backbone()
    rotary = backbone.layers._rotary
    for spoil in (lambda it: it[..., :-1], lambda it: it[:, :-1], Tensor.double):
        backbone.layers._rotary = lambda *given, spoil=spoil: tuple(map(spoil, rotary(*given)))
        with pytest.raises((TypeError, ValueError)):
            backbone.run()


def test_heads_longer_than_the_stack_has_room_for_are_left_to_the_model() -> None:
    config = Qwen3Config(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=2 * LONGEST_HEAD, vocab_size=8,
    )  # fmt: skip
    assert not Layers.fit(Qwen3Model(config))


def sound() -> list[NDArray[Any]]:
    """Arguments of `mel.feed` that are right, for two frames."""
    half, spans = FFT // 2, np.zeros((BANDS, 2), np.int32)
    spans[:, 1] = half + 1
    sizes = ((CONTEXT,), (2 * HOP,), (WINDOW,), (2 * half,), (BANDS, half + 1))
    return [*(np.zeros(size, np.float32) for size in sizes), spans, np.zeros((2, BANDS), np.float32)]


@pytest.mark.parametrize("which", range(7))
@pytest.mark.parametrize(
    "spoil",
    [
        lambda it: it.astype(np.float64),
        lambda it: it.astype(np.int64),
        lambda it: it.view(np.uint32 if it.dtype == np.float32 else np.float32),
        lambda it: it.astype(it.dtype.newbyteorder()),
        lambda it: it.reshape(-1)[:-1],
        lambda it: np.concatenate([it.reshape(-1)] * 2),
        lambda it: np.repeat(it.reshape(-1), 2)[::2],
        lambda it: None,
    ],
)
def test_mel_refuses_arrays_of_another_kind(which: int, spoil: Callable[[NDArray[Any]], Any]) -> None:
    given = sound()
    mel.feed(*given)
    given[which] = spoil(given[which])
    with pytest.raises((TypeError, ValueError, BufferError)):
        mel.feed(*given)
    with pytest.raises(TypeError):
        mel.feed(*given[:-1])


@pytest.mark.parametrize("which", [0, 6])
def test_mel_refuses_to_write_into_constants(which: int) -> None:
    given = sound()
    given[which].flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        mel.feed(*given)


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("place", [-1, -(2**31), FFT // 2 + 2, 2**31 - 1])
def test_mel_refuses_filters_beyond_the_spectrum(column: int, place: int) -> None:
    given = sound()
    given[5][-1, column] = place
    if (column, place < 0) in ((0, True), (1, False)):
        with pytest.raises(IndexError, match="filter 79 is not within the 257 frequencies"):
            mel.feed(*given)
    else:
        mel.feed(*given)  # nothing is between them


SCORES = np.array([1.0, 3.0, 2.5, -1.0], np.float32)
PLAIN = Draw(1.0, 4, 1.0, [0.5, 0.5])


def choose(scores: Any = SCORES, forbidden: Any = None, **others: Any) -> int | None:
    return draw.choose(scores.copy(), replace(PLAIN, **others), forbidden)


@pytest.mark.parametrize(
    "scores",
    [
        *(SCORES.astype(kind) for kind in (np.float64, np.int32, ">f4")),
        *(SCORES.reshape(2, 2), np.zeros((), np.float32), np.repeat(SCORES, 2)[::2]),
    ],
)
def test_draw_refuses_scores_of_another_kind(scores: NDArray[Any]) -> None:
    with pytest.raises((TypeError, ValueError, BufferError)):
        draw.choose(scores, PLAIN, None)


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        *(({"forbidden": np.zeros(2, t)}, TypeError, "must be int64") for t in (np.int32, float, np.uint64)),
        *(({"recent": np.array([1], t)}, TypeError, "must be int32") for t in (int, np.uint32, np.float32)),
        ({"recent": np.ones((2, 2), np.int32)}, ValueError, "one dimension"),
        *(
            ({"allowed": np.ones(1, t)}, TypeError, "allowed must be int32")
            for t in (int, np.float32, np.uint8)
        ),
        ({"uniforms": [0.5]}, IndexError, None),
        ({"uniforms": [0.5, "a"]}, TypeError, None),
        ({"uniforms": None}, TypeError, None),
        ({"top_k": 0}, IndexError, None),
        ({"top_k": -1}, IndexError, None),
        ({"scores": np.zeros(0, np.float32)}, IndexError, None),
    ],
)
def test_draw_with_invalid_options_is_refused(
    asked: dict[str, Any], error: type[Exception], message: str | None
) -> None:
    with pytest.raises(error, match=message):
        choose(**{"repetition_penalty": 2.0} | asked)


@pytest.mark.parametrize("bad", [-1, 4, 2**31, 2**32, 2**32 + 1, -(2**32) + 1, -(2**62)])
@pytest.mark.parametrize("field", ["first", "favoured", "recent", "ends", "forbidden"])
def test_draw_refuses_ids_beyond_the_vocabulary(field: str, bad: int) -> None:
    """Also those that would be within it if they were cut to 32 bits."""
    given: dict[str, dict[str, Any]] = {
        "recent": {"recent": [1, bad], "repetition_penalty": 2.0},
        "ends": {"ends": [bad], "length_penalty": 0.5},
        "forbidden": {"forbidden": np.array([1, bad])},
    }
    with pytest.raises(IndexError, match="an id is not in the vocabulary"):
        choose(**given.get(field, {field: bad}))


def test_draw_short_mask_allows_no_more() -> None:
    assert draw.choose(np.zeros(64, np.float32), replace(PLAIN, allowed=np.array([2], np.int32)), None) == 1


def test_copy_of_panels_multiplies_its_own_weights() -> None:
    first = Panels(torch.ones(16, 4), torch.zeros(16))
    second = copy.deepcopy(first)
    first._panels.fill_(torch.nan)
    assert torch.equal(second.product(torch.ones(1, 4)), torch.full((1, 16), 4.0))

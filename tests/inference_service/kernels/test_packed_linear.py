"""Linear layers with packed weights: the same numbers, from one copy of the weights."""

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2Model

from inference_service.kernels import packed_linear, panels, selection
from inference_service.kernels.packed_linear import SIZES, PackedLinear, Part, pack_linears, supports
from inference_service.kernels.selection import usable

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.05}
ROWS = (0, 1, 2, 3, 5, 17, 50, 63, 64, 65, 100, 120, 200, 250, 300, 600)


@pytest.fixture(params=["ours", "oneDNN's"], autouse=True)
def product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Select the product of float32 layers: ours, or oneDNN's as where nothing was compiled."""
    if request.param == "ours" and not usable("linear"):
        pytest.skip("there was no compiler when the package was installed")
    if request.param == "oneDNN's":
        if not supports(torch.float32):
            pytest.skip("this torch has no packed weights")
        monkeypatch.setattr(selection, "_is_built", lambda module: False)
    return str(request.param)


class Talker(nn.Module):
    """Embeddings that are the head's weights too, a layer with a bias, and one whose sizes fit no block."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(70, 33)
        self.layers = nn.Sequential(nn.Linear(33, 48), nn.ReLU(), nn.Linear(48, 33, bias=False))
        self.head = nn.Linear(33, 70, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layers(self.embed(ids)))
        return scores


@pytest.fixture
def talker() -> Talker:
    torch.manual_seed(0)
    return Talker().eval()


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A build of torch that lacks the operator."""

    def missing(*_: object) -> Tensor:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")

    monkeypatch.setattr(selection, "_selected", "off")
    monkeypatch.setattr(packed_linear, "_product", missing)
    supports.cache_clear()
    yield
    supports.cache_clear()


def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_any_number_of_rows_gives_what_a_plain_layer_gives(dtype: torch.dtype, bias: bool) -> None:
    if not panels.fit(dtype) and not supports(dtype):
        pytest.skip("this processor has no such numbers")
    torch.manual_seed(0)
    plain = nn.Linear(96, 70, bias=bias).to(dtype)
    for shared in (False, True) if supports(dtype) else (False,):
        packed = PackedLinear(plain, shared=shared)
        for rows in ROWS:
            given = x(rows, 96, dtype=dtype)
            torch.testing.assert_close(packed(given), plain(given), atol=TOLERANCE[dtype], rtol=0)


@torch.inference_mode()
def test_leading_dimensions_and_strides_are_those_of_a_plain_layer() -> None:
    plain = nn.Linear(24, 8)
    packed = PackedLinear(plain)
    split = x(2, 3, 4, 24), x(24, 9).t(), x(7, 48)[:, ::2], x(24, 3)[:, :1].t()
    for given in (x(24), x(3, 5, 24), x(3, 0, 24), *split):
        heard = packed(given)
        assert heard.shape == plain(given).shape
        assert heard.is_contiguous()
        torch.testing.assert_close(heard, plain(given), atol=1e-5, rtol=0)


@torch.inference_mode()
def test_rows_reach_onednn_in_a_few_sizes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN keeps a kernel for each size: arbitrary row counts would take unbounded memory."""
    if not supports(torch.float32):
        pytest.skip("this torch has no packed weights")
    monkeypatch.setattr(selection, "_selected", "off")
    product, met = packed_linear._product, set()

    def counted(given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        met.add(given.numel() // 24)
        return product(given, weight, bias)

    monkeypatch.setattr(packed_linear, "_product", counted)
    packed = PackedLinear(nn.Linear(24, 8))
    for rows in range(1200):
        assert packed(x(rows, 24)).shape == (rows, 8)

    assert met == set(SIZES)


@torch.inference_mode()
def test_packed_model_says_what_the_plain_one_says(talker: Talker) -> None:
    ids = torch.arange(70)
    expected = talker(ids)
    packed = pack_linears(talker)
    assert {type(it) for it in packed.modules()} == {
        Talker, nn.Embedding, nn.Sequential, nn.ReLU, PackedLinear
    }  # fmt: skip
    torch.testing.assert_close(packed(ids), expected, atol=1e-5, rtol=0)


def test_packed_model_state_equals_plain_state_and_plain_weights_are_freed(talker: Talker) -> None:
    before = {name: tensor.clone() for name, tensor in talker.state_dict().items()}
    sizes = [tuple(it.shape) for it in talker.parameters()]
    plain = [weakref.ref(it) for it in talker.modules() if type(it) is nn.Linear]
    packed = pack_linears(talker)
    gc.collect()

    after = packed.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert packed.head.weight is packed.embed.weight, "shared weights are there once"
    assert not packed.head.weight.is_mkldnn
    assert [tuple(it.shape) for it in talker.parameters()] == sizes
    assert plain
    assert not any(it() for it in plain)


def test_layers_too_small_to_gain_stay_as_they_are(talker: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocoder's sum of nine harmonics has 24,000 rows and a single column."""
    monkeypatch.setattr(packed_linear, "SMALLEST", 33 * 48 + 1)
    assert [type(it) for it in pack_linears(talker).layers] == [nn.Linear, nn.ReLU, nn.Linear]
    assert type(talker.head) is PackedLinear


def test_numbers_without_kernels_and_weights_elsewhere_stay_as_they_are(talker: Talker) -> None:
    assert not supports(torch.float16)
    assert type(pack_linears(talker.half()).head) is nn.Linear
    with torch.device("meta"):
        layer = nn.Sequential(nn.Linear(4, 4))
    assert type(pack_linears(layer)[0]) is nn.Linear


@pytest.mark.usefixtures("without_kernels")
def test_a_torch_without_the_operator_keeps_its_plain_layers(talker: Talker) -> None:
    expected = talker(torch.arange(70))
    assert not supports(torch.float32)
    assert type(pack_linears(talker).head) is nn.Linear
    assert torch.equal(talker(torch.arange(70)), expected)


def decoder(hidden: int = 32, layers: int = 2, heads: int = 4) -> Qwen2Model:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=8, hidden_size=hidden, intermediate_size=3 * hidden // 2, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=2,
    )  # fmt: skip
    return Qwen2Model(config).eval()


@torch.inference_mode()
def test_layers_with_shared_input_are_fused_with_equal_output() -> None:
    model = decoder()
    for parameter in model.parameters():
        parameter.add_(0.01 * torch.randn(parameter.shape))  # biases too
    ids, before = torch.arange(8)[None], {name: it.clone() for name, it in model.state_dict().items()}
    expected = model(ids, use_cache=False).last_hidden_state
    size = sum(it.numel() for it in model.parameters())

    packed = pack_linears(model)

    attention, network = packed.layers[0].self_attn, packed.layers[0].mlp
    assert attention.qkv_proj.out_features == 32 + 16 + 16
    assert network.gate_up_proj.out_features == 2 * 48
    assert {type(it) for it in (attention.q_proj, attention.k_proj, attention.v_proj)} == {Part}
    torch.testing.assert_close(packed(ids, use_cache=False).last_hidden_state, expected, atol=1e-5, rtol=0)
    assert sum(it.numel() for it in packed.parameters()) == size
    after = packed.state_dict()
    assert set(after) == set(before)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_layer_with_shared_weight_is_not_fused() -> None:
    model = decoder()
    first, second = (it.self_attn for it in model.layers)
    second.q_proj.weight = first.q_proj.weight
    pack_linears(model)
    assert not hasattr(first, "qkv_proj")
    assert hasattr(model.layers[0].mlp, "gate_up_proj")


@pytest.mark.parametrize("dtype", TOLERANCE)
@torch.inference_mode()
def test_kernels_off_keep_weights_where_they_are_and_join_no_layers(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that are mapped from a file would else take memory of their own."""
    monkeypatch.setattr(selection, "_selected", "off")
    model = decoder(64, layers=1, heads=2).to(dtype)
    places = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    plain = model(inputs_embeds=x(1, 7, 64, dtype=dtype)).last_hidden_state
    packed = pack_linears(model)
    assert {name: tensor.data_ptr() for name, tensor in packed.state_dict().items()} == places
    again = packed(inputs_embeds=x(1, 7, 64, dtype=dtype)).last_hidden_state
    assert (again - plain).abs().max() <= TOLERANCE[dtype]

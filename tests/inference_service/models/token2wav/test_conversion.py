"""The published files become a folder that the worker reads, and nothing in them is run."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference_service.checkpoints.published_vocoder import folded, read_config, read_yaml
from inference_service.checkpoints.vocoder import load, read_vocoder_config
from inference_service.checkpoints.vocoder_conversion import Recording, convert
from inference_service.checkpoints.voices import load_voices
from inference_service.models.errors import CheckpointError, VoiceError
from inference_service.models.token2wav.config import Token2WavConfig
from tests.inference_service.models.minicpmo.test_checkpoint import Trap
from tests.inference_service.models.token2wav import published
from tests.inference_service.models.token2wav.test_features import noise

MISSING = object()
SIZES = json.loads((published.RECORDED / "config.json").read_text())["tiny"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return published.write(tmp_path / "published")


@pytest.fixture
def converted(source: Path) -> Path:
    target = source.parent / "vocoder"
    convert(source, target, {})
    return target


def refused(source: Path, problem: str) -> None:
    target = source.parent / "refused"

    with pytest.raises(CheckpointError, match=problem):
        convert(source, target, {})

    assert list(source.parent.iterdir()) == [source]


@pytest.mark.parametrize("is_causal", [False, True])
def test_configuration_is_that_of_the_files(tmp_path: Path, is_causal: bool) -> None:
    source = published.write(tmp_path / "published", is_causal=is_causal)
    config = convert(source, tmp_path / "vocoder", {})
    assert read_vocoder_config(tmp_path / "vocoder") == config
    assert config.vocoder.is_causal == is_causal
    encoder, estimator = config.encoder, config.estimator
    assert (encoder.vocabulary, encoder.width, encoder.heads) == (6561, 32, 4)
    assert (encoder.feed_forward, encoder.blocks, encoder.up_blocks) == (48, 2, 1)
    assert (estimator.width, estimator.depth, estimator.heads, estimator.head_dim) == (24, 2, 2, 8)
    assert (config.vocoder.channels, config.vocoder.f0_channels, config.vocoder.harmonics) == (32, 24, 8)
    assert (config.speaker, config.guidance, estimator.mlp_ratio) == (192, 0.7, 4.0)


def test_published_sizes_are_the_defaults(tmp_path: Path) -> None:
    """As the README of the recordings and public readers of the file have them."""
    sizes = {
        "flow": SIZES["flow"] | {"input_size": 512},
        "encoder": SIZES["encoder"]
        | {"input_size": 512, "output_size": 512, "num_blocks": 6, "num_up_blocks": 4}
        | {"attention_heads": 8, "linear_units": 2048},
        "cfm": SIZES["cfm"],
        "estimator": SIZES["estimator"] | {"depth": 16, "num_heads": 8, "head_dim": 64, "hidden_size": 512},
    }
    (tmp_path / "flow.yaml").write_text(published.flow_yaml(sizes))
    told = {"conv_pre.bias": [512], "f0_predictor.condnet.0.bias": [512], "m_source.l_linear.weight": [1, 9]}

    config = read_config(tmp_path, {name: torch.zeros(shape) for name, shape in told.items()})

    assert config == Token2WavConfig()


def test_folder_is_data_alone_and_left_alone_if_it_exists(source: Path, converted: Path) -> None:
    assert sorted(path.name for path in converted.iterdir()) == [
        *("campplus.onnx", "config.json", "model.safetensors", "speech_tokenizer_v2_25hz.onnx")
    ]
    before = (converted / "config.json").read_bytes()
    with pytest.raises(CheckpointError, match=r"exists\. Remove it, or name another folder"):
        convert(source, converted, {})
    assert (converted / "config.json").read_bytes() == before


def test_older_spelling_of_weight_norms(source: Path) -> None:
    weights = torch.load(source / "hift.pt", weights_only=True)
    respelled = {
        name.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): tensor
        for name, tensor in weights.items()
    }
    assert any(name.endswith("weight_g") for name in respelled)
    torch.save(respelled, source / "hift.pt")
    convert(source, source.parent / "again", {})

    plain = folded({name.removeprefix("generator."): tensor for name, tensor in weights.items()})
    again = load(source.parent / "again", torch.device("cpu")).hift.state_dict()
    assert all(torch.equal(again[name], tensor.float()) for name, tensor in plain.items())


def test_voices_are_registered(source: Path) -> None:
    target = source.parent / "vocoder"
    voices = {"default": Recording(noise(32_000), 16_000), "anna": Recording(noise(48_000, 1), 24_000)}
    config = convert(source, target, voices)
    assert {name: len(voice.tokens) for name, voice in load_voices(target, config).items()} == {
        "anna": 50,
        "default": 50,
    }


def test_useless_voice_leaves_no_folder(source: Path) -> None:
    with pytest.raises(VoiceError, match="1 s or more"):
        convert(source, source.parent / "vocoder", {"default": Recording(noise(1000), 16_000)})
    assert sorted(path.name for path in source.parent.iterdir()) == ["published"]


@pytest.mark.parametrize("name", ["../x", "Anna", "", "a" * 65])
def test_impossible_id_of_a_voice(source: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="is no id of a voice"):
        convert(source, source.parent / "vocoder", {name: Recording(noise(32_000), 16_000)})


@pytest.mark.parametrize(
    "name", ["flow.yaml", "flow.pt", "hift.pt", "campplus.onnx", "speech_tokenizer_v2_25hz.onnx"]
)
def test_missing_file_is_named(source: Path, name: str) -> None:
    (source / name).unlink()
    refused(source, f"has no {name}")


@pytest.mark.parametrize("name", ["flow.pt", "hift.pt"])
@pytest.mark.parametrize("is_zip", [True, False])
def test_pickle_is_not_run(source: Path, name: str, is_zip: bool) -> None:
    marker = source.parent / "marker"
    torch.save({"weight": Trap(marker)}, source / name, _use_new_zipfile_serialization=is_zip)
    refused(source, f"{name} holds more than tensors, or is damaged. It was not run")
    assert not marker.exists()
    pickle.loads(pickle.dumps(Trap(marker)))
    assert marker.exists(), "the trap is none"


OTHER_THINGS = [torch.zeros(1)], {"a": 1}, {1: torch.zeros(1)}, {"a": {"b": torch.zeros(1)}}
DAMAGED = b"", b"PK\x03\x04 no more", b"version https://git-lfs.github.com/spec/v1\n"


@pytest.mark.parametrize("content", [*OTHER_THINGS, *DAMAGED])
def test_damaged_pickle_or_one_of_other_things_is_refused(source: Path, content: object) -> None:
    path, problem = source / "flow.pt", "must hold tensors by their names and nothing else"
    if isinstance(content, bytes):
        path.write_bytes(content)
        problem = r"flow\.pt (is not a readable|holds more than tensors, or is damaged)"
    else:
        torch.save(content, path)
    refused(source, problem)


@pytest.mark.parametrize(
    "line",
    [
        "trap: !!python/object/apply:os.mkdir [MARKER]",
        "trap: !!python/object/new:os.mkdir {args: [MARKER]}",
        "trap: !!python/name:os.mkdir ''",
        "trap: !include:/etc/passwd",
        "trap: !copy <flow>",
        "trap: !tuple (1, 2)",
        "trap: !!binary aGVsbG8=",
    ],
)
def test_yaml_with_tags_that_no_published_file_has(source: Path, line: str) -> None:
    marker = source.parent / "marker"
    with (source / "flow.yaml").open("a") as file:
        file.write(line.replace("MARKER", str(marker)) + "\n")
    refused(source, "which no published file has. It was not run")
    assert not marker.exists()


@pytest.mark.parametrize("tag", ["!apply:os.mkdir", "!new:os.mkdir", "!name:os.mkdir"])
def test_yaml_that_names_code_is_data(tmp_path: Path, tag: str) -> None:
    marker = tmp_path / "marker"
    path = tmp_path / "x.yaml"
    path.write_text(f"one: {tag} [{marker}]\nsize: 3\nalso: !ref <size>\nsum: !ref <size> * <size>\n")
    data = read_yaml(path)
    assert not marker.exists()
    assert data.keys() == {"one", "size", "also", "sum"}
    assert (data["also"], data["sum"]) == (3, "<size> * <size>")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: &x [1]\nb: *x\n", "has aliases or deep nesting"),
        ("- 1\n", "does not hold a mapping"),
        ("", "does not hold a mapping"),
        ("a: [1\n", "is not valid YAML"),
        ("a: " + "[" * 60_000, "has aliases or deep nesting"),
        ("".join(" " * i + "a:\n" for i in range(300)), "has aliases or deep nesting"),
        ("\x00", "is not valid YAML"),
        ("a: " + "1" * 70_000, "at most 65536 are expected"),
        ("a: 1\n", "flow must be .*, not no class"),
        (
            "flow: !new:cosyvoice2.flow.flow.CausalMaskedDiffWithXvec\n  a: 1\n",
            "has no flow.encoder of the class",
        ),
        ("flow: 1\n", "flow must be .*, not no class"),
    ],
)
def test_strange_yaml(source: Path, text: str, problem: str) -> None:
    (source / "flow.yaml").write_text(text)
    refused(source, problem)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("pre_lookahead_len: 3", "pre_lookahead_len: 4", r"pre_lookahead_len must be 3, not 4"),
        ("key_bias: true", "key_bias: false", r"flow\.encoder\.key_bias must be True, not False"),
        ("output_type: mel", "output_type: wave", r"flow\.output_type must be 'mel', not 'wave'"),
        ("input_size: 32", "input_size: 64", r"flow\.(encoder\.)?input_size must be 32, not 64"),
        ("depth: 2", "depth: two", r"estimator\.depth must be a whole number of 1 or more, not 'two'"),
        ("num_blocks: 2", "num_blocks: -2", r"num_blocks must be a whole number of 1 or more, not -2"),
        ("vocab_size: 6561", "vocab_size: true", r"vocab_size must be a whole number of 1 or more, not True"),
        ("inference_cfg_rate: 0.7", "inference_cfg_rate: .nan", r"inference_cfg_rate must be a number"),
        ("attention_heads: 4", "attention_heads: 5", "a multiple of twice its heads, not 32 with 5 heads"),
        ("sample_rate: 24000", "sample_rate: 22050", r"hift\.sampling_rate must be 24000, not 22050"),
        ("conv_pre_look_right: 4", "conv_pre_look_right: 0", r"hift\.conv_pre_look_right must be 4, not 0"),
        ("[8, 5, 3]", "[8, 8]", r"hift\.upsample_rates must be \[8, 5, 3\], not \[8, 8\]"),
        ("hop_len: 4", "hop_len: 8", r"hift\.istft_params must be"),
        *(
            (published.FLOW_TAGS[name], "!new:os.system", rf"{path} must be .*{kind}, not os\.system")
            for name, path, kind in (
                ("flow", "flow", r"cosyvoice2\.flow\.flow\.CausalMaskedDiffWithXvec"),
                ("encoder", r"flow\.encoder", "UpsampleConformerEncoderV2"),
                ("estimator", r"flow\.decoder\.estimator", "DiT"),
            )
        ),
        ("CausalHiFTGenerator", "HiFTGenerator", r"hift must be .*CausalHiFTGenerator, not .*HiFTGenerator"),
    ],
)
def test_configuration_that_is_not_ours(tmp_path: Path, old: str, new: str, problem: str) -> None:
    is_causal = problem.startswith("hift")
    source = published.write(tmp_path / "published", is_causal=is_causal)
    path = source / ("config.yaml" if is_causal else "flow.yaml")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    refused(source, problem)


def test_vocoder_of_the_other_kind(tmp_path: Path) -> None:
    """A `config.yaml` beside the weights of plain HiFT: their shapes tell."""
    source = published.write(tmp_path / "published")
    (source / "config.yaml").write_text(published.causal_yaml(SIZES))
    refused(source, r"of another shape \(.*hift.conv_pre.weight is \[32, 80, 7\] and not \[32, 80, 5\]")


@pytest.mark.parametrize("name", ["flow.pt", "hift.pt"])
def test_missing_left_over_and_misshapen_tensors_are_listed(source: Path, name: str) -> None:
    prefix = "" if name == "flow.pt" else "generator."
    first = "encoder.after_norm.bias" if name == "flow.pt" else "ups.0.bias"
    second = "encoder.after_norm.weight" if name == "flow.pt" else "ups.1.bias"
    weights = torch.load(source / name, weights_only=True)
    weights["stranger"] = torch.zeros(1)
    del weights[prefix + first]
    weights[prefix + second] = torch.zeros(7)
    torch.save(weights, source / name)
    stem = name.removesuffix(".pt")

    refused(
        source,
        rf"lacks 1 tensors that the model needs \({stem}.{first}\) and has 1 that it has no place for "
        rf"\({stem}.stranger\) and has 1 of another shape \({stem}.{second} is \[7\]",
    )


def test_vocoder_without_the_tensors_that_tell_its_sizes(source: Path) -> None:
    torch.save({"a": torch.zeros(1)}, source / "hift.pt")
    refused(source, "hift.pt has no conv_pre.bias. Is it the vocoder of MiniCPM-o 4.5?")


def test_loading_needs_neither_pickle_nor_yaml(converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "load", None)
    monkeypatch.setattr("yaml.compose", None)
    assert load(converted, torch.device("cpu"), steps=3, cache_dtype=torch.bfloat16).flow.steps == 3


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("model_type",), "duplex", "model_type must be 'token2wav', not 'duplex'"),
        (("encoder", "width"), 0, "width must be a whole number of 1 or more, not 0"),
        (("encoder", "width"), 2.5, "width must be a whole number of 1 or more, not 2.5"),
        (("encoder", "width"), 1 << 40, "width must be a whole number"),
        (("encoder", "heads"), 3, "a multiple of twice its heads, not 32 with 3 heads"),
        (("vocoder", "is_causal"), 1, "is_causal must be true or false, not 1"),
        (("vocoder", "channels"), 12, "a multiple of 8 channels, not 12"),
        (("estimator",), {}, "EstimatorConfig needs the fields width, depth"),
        (("estimator",), None, "EstimatorConfig needs the fields width, depth"),
        (("guidance",), "much", "guidance must be a number of 0 or more, not 'much'"),
        (("speaker",), True, "speaker must be a whole number of 1 or more, not True"),
        (("speaker",), MISSING, "lacks 'speaker'"),
        (("extra",), 1, "has 'extra', which is no field"),
    ],
)
def test_strange_configuration_is_named(
    converted: Path, path: tuple[str, ...], value: Any, problem: str
) -> None:
    data = json.loads((converted / "config.json").read_text())
    inner = data
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    if value is MISSING:
        del inner[path[-1]]
    (converted / "config.json").write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match=problem):
        load(converted, torch.device("cpu"))


def test_weights_that_do_not_fit_are_listed(converted: Path) -> None:
    weights = load_file(converted / "model.safetensors")
    weights["stranger"] = weights.pop("flow.encoder_proj.bias")
    save_file(weights, converted / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks 1 .*encoder_proj\.bias.*no place for \(stranger\)"):
        load(converted, torch.device("cpu"))


def test_folder_that_was_not_converted(source: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load(source, torch.device("cpu"))

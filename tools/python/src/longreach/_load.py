"""A checkpoint as a torch module, by way of `longreach export RUN --hf DIR`."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from ._files import RunError, read_json, shown


def find_program():
    """The path of the program: LONGREACH, PATH, where a wheel puts it, then build/longreach of the checkout that
    this package lies in. RunError if there is none."""
    named = os.environ.get("LONGREACH")
    if named:
        found = shutil.which(named)
        if found is None:
            raise RunError(f"LONGREACH names {shown(named)}, which is not an executable file")
        return found
    found = shutil.which("longreach") or shutil.which("longreach", path=sysconfig.get_path("scripts"))
    if found is not None:
        return found
    for above in Path(__file__).resolve().parents:
        program = above / "build" / "longreach"
        if program.is_file() and os.access(program, os.X_OK):
            return str(program)
    raise RunError("the program longreach was not found: set LONGREACH to its path, put it into PATH, or build it in "
                   "this package's checkout (build/longreach)")


def _checkpoint_path(run, checkpoint):
    run = Path(run).expanduser()
    if not run.is_dir():
        raise RunError(f"{shown(run)} is not a directory")
    if checkpoint is None:
        return run
    if isinstance(checkpoint, int):
        checkpoint = f"step_{checkpoint:08}"
    for path in (run / "checkpoints" / checkpoint, Path(checkpoint)):
        if path.is_dir():
            return path
    present = sorted(p.name for p in run.glob("checkpoints/step_*") if p.name[5:].isdigit())
    raise RunError(f"{shown(run / 'checkpoints' / checkpoint)} does not exist; the checkpoints there are "
                   f"{', '.join(present) or 'none'}")


def _torch_packages():
    try:
        import safetensors  # noqa: F401
        import torch
        import transformers
    except ImportError as missing:
        raise RunError(f"load() needs torch, transformers and safetensors: {missing}; pip install "
                       "'longreach[torch]'") from missing
    return torch, transformers


def _modeling(path):
    """The module of a modelling file. It is imported from here and not through transformers' cache of remote code,
    so that nothing is written to the home directory; equal files are one module."""
    source = Path(path).read_bytes()
    name = f"longreach._modeling_{hashlib.sha256(source).hexdigest()[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # a class finds its module while it is made
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def export(run, directory, checkpoint=None):
    """Writes the newest checkpoint of a run, or the one given, to a directory in Hugging Face's layout."""
    target = str(_checkpoint_path(run, checkpoint))
    program = find_program()
    # A name that begins with a dash is a path here, not an option.
    target = os.path.join(".", target) if target.startswith("-") else target
    try:
        done = subprocess.run([program, "export", target, "--hf", str(directory)], capture_output=True,
                              stdin=subprocess.DEVNULL, text=True, errors="replace")
    except OSError as error:
        raise RunError(f"{shown(program)}: {error.strerror}") from error
    if done.returncode != 0:
        raise RunError(f"{shown(program)} export {shown(target)} ended with code {done.returncode}: "
                       f"{done.stderr.strip() or done.stdout.strip()}")


def load(run, checkpoint=None, **arguments):
    """A torch.nn.Module of a run's newest checkpoint, or of another one: `checkpoint` is a step, a name such as
    step_00000800, or a directory. It is in evaluation mode, on the CPU, in float32.

    The module is what transformers makes of `longreach export`: LlamaForCausalLM or Qwen3ForCausalLM where the model
    is one, else LongreachForCausalLM of the exported modelling file. model(ids).logits are those of the program.
    `arguments` go to from_pretrained, such as dtype=torch.bfloat16 or attn_implementation="eager"."""
    torch, transformers = _torch_packages()
    _checkpoint_path(run, checkpoint)
    # torch_dtype was renamed dtype in transformers 4.56.
    renamed = tuple(int(part) for part in transformers.__version__.split(".")[:2]) >= (4, 56)
    arguments.setdefault("dtype" if renamed else "torch_dtype", torch.float32)
    with tempfile.TemporaryDirectory(prefix="longreach-") as made:
        directory = os.path.join(made, "model")
        export(run, directory, checkpoint)
        code = os.path.join(directory, "modeling_longreach.py")
        if os.path.exists(code):
            module = _modeling(code)
            config = module.LongreachConfig.from_pretrained(directory)
            return module.LongreachForCausalLM.from_pretrained(directory, config=config, **arguments).eval()
        if read_json(os.path.join(directory, "config.json")) is None:
            raise RunError(f"the export of {shown(run)} has no config.json")
        return transformers.AutoModelForCausalLM.from_pretrained(directory, **arguments).eval()


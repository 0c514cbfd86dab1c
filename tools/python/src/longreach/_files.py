"""Readers of the files of a run directory, by the rules of the program: only finished lines count, so that a run may be
read while it trains; a missing file has no rows; a malformed one is an error with file and line.

data/formats/records.md of the program describes the columns.
"""

import json
import os
import stat

import numpy as np
import pandas as pd

INTEGER, NUMBER, TEXT, LIST = "integer", "number", "text", "list"


def _columns(**kinds):
    return {name: kind for kind, names in kinds.items() for name in names.split()}


# The columns this version knows, by file; another column is kept as text, in JSON lines as its JSON value.
COLUMNS = {
    "val.csv": _columns(integer="step tokens length", text="fingerprint",
                        number="loss standard_error scored documents bits_per_byte top1 top1_error"),
    "positions.csv": _columns(integer="step length bucket", text="by fingerprint", number="loss scored"),
    "tasks.csv": _columns(integer="step length samples", text="task fingerprint",
                          number="depth accuracy accuracy_error margin margin_error loss"),
    "key_tokens.csv": _columns(integer="step length from to", text="part judge fingerprint judge_name parts",
                               number="loss standard_error scored"),
    "probe.csv": _columns(integer="step length layer head bin count", text="statistic", number="value"),
    "metrics.jsonl": _columns(integer="step tokens context skipped", list="layer_grad_norms",
                              number="loss bits_per_byte grad_norm lr spikes spikes_skipped max_score"),
    "timing.jsonl": _columns(integer="step memory_bytes", text="time",
                             number="seconds evaluation_seconds saving_seconds tokens_per_second flops_per_second "
                                    "peak_fraction mfu ranks bytes_sent"),
}

# Without these, rows of the file mean nothing.
REQUIRED = {
    "val.csv": ("step", "tokens", "length", "loss"),
    "positions.csv": ("step", "length", "by", "bucket", "loss", "scored"),
    "tasks.csv": ("step", "task", "length", "accuracy"),
    "key_tokens.csv": ("step", "length", "part", "scored", "from", "to", "judge"),
    "probe.csv": ("step", "length", "layer", "head", "bin", "statistic", "value"),
}

# The order of the program's own header; a file of an earlier version lacks some of them.
ORDER = {
    "val.csv": "step tokens length loss standard_error scored documents bits_per_byte top1 top1_error fingerprint",
    "positions.csv": "step length by bucket loss scored fingerprint",
    "tasks.csv": "step task length depth samples accuracy accuracy_error margin margin_error loss fingerprint",
    "key_tokens.csv": "step length part loss standard_error scored from to judge fingerprint judge_name parts",
    "probe.csv": "step length layer head bin statistic value count",
    "metrics.jsonl": "step tokens context loss bits_per_byte grad_norm lr skipped spikes spikes_skipped max_score "
                     "layer_grad_norms",
    "timing.jsonl": "step time seconds evaluation_seconds saving_seconds tokens_per_second flops_per_second "
                    "peak_fraction mfu memory_bytes ranks bytes_sent",
}


class RunError(Exception):
    """A directory or file that is not what it should be; the message names it."""


def shown(text):
    """A path or cell on one line: a line feed in a name must not break a message in two."""
    text = str(text)
    return text if text.isprintable() else repr(text)


def read_text(path):
    """The text of a regular file, None if there is no such file. A FIFO in its place would block forever."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise RunError(f"{shown(path)} is not a regular file")
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RunError(f"{shown(path)}: {error.strerror}") from error


def read_json(path):
    """The object in a JSON file, None if there is no such file."""
    text = read_text(path)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{shown(path)}: {error}") from error
    if not isinstance(value, dict):
        raise RunError(f"{shown(path)}: expected a JSON object")
    return value


def _finished_lines(text):
    """(number, line) of every complete line that is not empty. A killed run may leave an incomplete line at the end."""
    lines = text.split("\n")[:-1]
    return [(number, line) for number, line in enumerate(lines, 1) if line]


def _number(cell, kind):
    # Python also reads 1_000 and " 1", which the program never writes and itself refuses.
    if "_" in cell or cell != cell.strip():
        raise ValueError
    if kind == NUMBER:
        return float(cell) if cell else np.nan
    value = int(cell)
    if not -(2**63) <= value < 2**63:
        raise ValueError
    return value


def _convert(path, numbers, cells, kind):
    if kind == TEXT:
        return pd.Series(cells, dtype=object)
    out = []
    for number, cell in zip(numbers, cells):
        try:
            out.append(_number(cell, kind))
        except ValueError:
            what = "an integer" if kind == INTEGER else "a number"
            raise RunError(f"{shown(path)}:{number}: {cell!r} is not {what}") from None
    return pd.Series(out, dtype=np.int64 if kind == INTEGER else np.float64)


def empty(name):
    """A frame with the columns of a file and no rows."""
    kinds = COLUMNS[name]
    dtypes = {INTEGER: np.int64, NUMBER: np.float64}
    return pd.DataFrame({column: pd.Series(dtype=dtypes.get(kinds[column], object)) for column in ORDER[name].split()})


def read_csv(path, name):
    """The rows of a record file called `name`, None if there is no such file. The files have no quotes: the program
    writes a semicolon for a comma in a name."""
    text = read_text(path)
    if text is None:
        return None
    lines = _finished_lines(text)
    if not lines:
        return empty(name)
    header = lines[0][1].split(",")
    if len(set(header)) < len(header):
        raise RunError(f"{shown(path)}: a column occurs twice in the header")
    rows, numbers = [], []
    for number, line in lines[1:]:
        cells = line.split(",")
        if len(cells) != len(header):
            raise RunError(f"{shown(path)}:{number}: {len(cells)} columns instead of {len(header)}")
        rows.append(cells)
        numbers.append(number)
    if not rows:
        return empty(name)
    for column in REQUIRED[name]:
        if column not in header:
            raise RunError(f"{shown(path)}: there is no column '{column}'")
    kinds = COLUMNS[name]
    columns = {column: _convert(path, numbers, cells, kinds.get(column, TEXT))
               for column, cells in zip(header, zip(*rows))}
    return pd.DataFrame(columns)


def _member(value, kind):
    """A value of a JSON line; null is a number that was not finite."""
    if kind == LIST:
        return [_member(v, NUMBER) for v in value] if isinstance(value, list) else []
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == NUMBER:
        return float(value) if number else np.nan
    if kind == INTEGER:
        return value if number else 0
    return value


def read_json_lines(path, name):
    """The rows of metrics.jsonl or timing.jsonl, None if there is no such file."""
    text = read_text(path)
    if text is None:
        return None
    kinds, rows = COLUMNS[name], []
    for number, line in _finished_lines(text):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("expected a JSON object")
            rows.append({key: _member(value, kinds.get(key)) for key, value in row.items()})
        except (ValueError, OverflowError, RecursionError) as error:
            raise RunError(f"{shown(path)}:{number}: {error}") from error
    if not rows:
        return empty(name)
    names = dict.fromkeys(key for row in rows for key in row)
    frame = {}
    for column in names:
        cells = [row.get(column) for row in rows]
        kind = kinds.get(column)
        if kind == NUMBER:
            frame[column] = pd.Series([np.nan if cell is None else cell for cell in cells], dtype=np.float64)
        elif kind == INTEGER:
            try:
                frame[column] = pd.Series([0 if cell is None else cell for cell in cells], dtype=np.int64)
            except (OverflowError, TypeError, ValueError):
                raise RunError(f"{shown(path)}: a value of '{column}' is not an integer of 64 bits") from None
        else:
            frame[column] = pd.Series(cells, dtype=object)
    return pd.DataFrame(frame)


READERS = {name: read_json_lines if name.endswith(".jsonl") else read_csv for name in COLUMNS}


def flat(config, prefix=""):
    """A config as pairs of dotted path and value, the paths of --set: stages.0.steps. A list of plain values is one
    value, an empty object none."""
    out = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        if isinstance(value, list) and any(isinstance(entry, (dict, list)) for entry in value):
            value = {str(i): entry for i, entry in enumerate(value)}
        if isinstance(value, dict):
            out.update(flat(value, path + "."))
        else:
            out[path] = value
    return out

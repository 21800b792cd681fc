"""`traincheck diff` on two versions of a program that differ in one line: its place, its cause.

    python -m benchmarks.diff_pairs [--only WORD] [--jobs 2] [--json FILE]

Each pair of PAIRS changes one thing: a setting, the data, the computation, the state, the
evaluation, or what is saved. Each of UNUSED changes something that no value depends on. The exit
status is 1 if a first difference is at another place, if a cause is told that is not the right one,
or if a change without an effect is told as a difference.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import traincheck
from benchmarks import harness
from traincheck.diff.difference import Difference

PROGRAM = harness.WORKLOADS / "diff_pair.py"
VIEW = ("--quiet", "--view", "diff", "--outputs", "all")
HEADER = ("pair", "asked", "first difference", "place", "cause", "verdict")
_TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@dataclass(frozen=True, slots=True)
class Pair:
    """One change of the program, and what the comparison must say.

    Attributes:
        name: what is changed.
        old, new: the text of the program, and what stands in its place.
        step, phase: of the first difference; no phase if the runs are the same.
        causes: those that are right; the first is the best.
        ranks: how many processes train.
        variables: of the environment of the second run.
        resumes: the second run goes on from the state that the first one saves in the middle.
    """

    name: str
    old: str
    new: str
    step: int = 0
    phase: str = ""
    causes: tuple[str, ...] = ("code",)
    ranks: int = 1
    variables: tuple[tuple[str, str], ...] = ()
    resumes: bool = False


_ZERO = "            optimizer.zero_grad()\n"
_CLIP = "            nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n"
_SAVED = '"score": score, '
_SEED = "    torch.manual_seed(0)\n"
_HALF = (
    "        if epoch == 0:\n"
    '            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),\n'
    '                        "rng": torch.get_rng_state()}, Path(folder, "half.pt"))\n'
)
PAIRS = (
    Pair("setting", "weight_decay=0.01", "weight_decay=0.2", 0, "settings", ("setting",)),
    Pair("setting in mid-run", _ZERO, f"{_ZERO}            if epoch:\n                "
         'optimizer.param_groups[0]["lr"] = 0.001\n', 6, "settings", ("setting",)),
    Pair("forward code", "* x\n", "* x * 1.01\n", 0, "forward"),
    Pair("own function in the loop", 'net(batch["x"])', 'net(batch["x"] * 2)', 0, "forward",
         ("code", "model-input")),
    Pair("one field of a sample", '"weight": torch.ones(1)', '"weight": torch.zeros(1)', 0,
         "batch"),
    Pair("target in the data set", '"y": self.y[index]', '"y": (self.y[index] + 1) % CLASSES', 0,
         "batch"),
    Pair("target only", 'target = batch["y"]', 'target = (batch["y"] + 1) % CLASSES', 0, "loss",
         ("code", "loss-argument")),
    Pair("missing key", '"weight": torch.ones(1), ', "", 0, "batch"),
    Pair("rows of another order", "list(range(rows))", "list(range(rows))[::-1]", 0, "batch",
         ("code", "listing-order")),
    Pair("initial parameter", "torch.ones(WIDTH))", "torch.full((WIDTH,), 0.5))", 0, "parameter"),
    Pair("initial buffer", "torch.zeros(WIDTH))", "torch.full((WIDTH,), 0.5))", 0, "buffer"),
    Pair("gradients not cleared", _ZERO, "", 1, "gradient", ("not-cleared", "code")),
    Pair("clipping limit", "model.parameters(), 0.1", "model.parameters(), 0.05", 0, "settings",
         ("setting",)),
    Pair("no clipping", _CLIP, "", 0, "gradient", ("clipping", "code")),
    Pair("loss scaled", "loss.backward()", "(2 * loss).backward()", 0, "loss",
         ("code", "loss-scale")),
    Pair("evaluation only", "model(data.x)", "model(data.x + 0.5)", 5, "evaluation"),
    Pair("saved only", _SAVED, '"score": score + 1, ', 11, "saved"),
    Pair("default of a library", "nn.BatchNorm1d(WIDTH)", "nn.BatchNorm1d(WIDTH, momentum=0.2)", 0,
         "buffer"),
    Pair("used seed", _SEED, _SEED.replace("0", "1"), 0, "rng", ("seed",)),
    Pair("seed of the loader", "shuffle=True)",
         "shuffle=True, generator=torch.Generator().manual_seed(int(os.environ['ORDER'])))", 0,
         "batch", ("loader-generator", "code"), variables=(("ORDER", "7"),)),
    Pair("one more draw", "    model = Net()\n", "    model = Net()\n    torch.rand(1)\n", 0, "rng",
         ("code", "draws")),
    Pair("two ranks", "* x\n", "* x * 1.01\n", 0, "forward", ranks=2),
    Pair("dropout rate", "nn.Dropout(0.1)", "nn.Dropout(0.2)", 0, "forward"),
    Pair("resume without optimizer", '        optimizer.load_state_dict(state["optimizer"])\n', "",
         6, "optimizer_state", ("optimizer-not-restored",), resumes=True),
    # A write after the update is seen where the value is next used.
    Pair("parameter written in the loop", "            optimizer.step()\n",
         "            optimizer.step()\n            if epoch:\n                "
         "with torch.no_grad():\n                    model.outer.bias.add_(0.01)\n", 7, "forward"),
)  # fmt: skip
UNUSED = (
    Pair("nothing", "", ""),
    Pair("unused seed of Python", "    random.seed(0)", "    random.seed(5)"),
    Pair("Python not seeded", "    random.seed(0)\n", ""),
    Pair("NumPy not seeded", "    np.random.seed(0)\n", ""),
    Pair("unused draw of NumPy", _ZERO, f"{_ZERO}            np.random.rand()\n"),
    Pair("unused draw of Python", _ZERO, f"{_ZERO}            random.random()\n"),
    Pair("an unused generator of torch", _ZERO,
         f"{_ZERO}            torch.rand(1, generator=torch.Generator())\n"),
    Pair("time stamp in what is printed", "{score:.3f}", "{score:.3f}, {time.time()}"),
    Pair("temporary name", _ZERO, f"{_ZERO}            tempfile.mktemp()\n"),
    Pair("process id", _ZERO, f"{_ZERO}            os.getpid()\n"),
    Pair("path of what is saved", '"last.pt"', '"final.pt"'),
    Pair("another folder", "from.pt", "begin.pt"),
    Pair("comment", "    model = Net()\n", "    model = Net()  # small\n"),
    Pair("name of a variable", "logits", "scores"),
    Pair("an import", "import sys\n", "import sys\nimport json\n"),
    Pair("an unused function", "def evaluate(",
         "def unused(x):\n    return x + 1\n\n\ndef evaluate("),
    Pair("an unused variable of the environment", "", "", variables=(("NOTHING_READS", "1"),)),
    Pair("log level", "", "", variables=(("LOG_LEVEL", "debug"),)),
    Pair("two ranks, nothing", "", "", ranks=2),
    Pair("one more print", _ZERO, f"{_ZERO}            print('step')\n"),
)  # fmt: skip


def record(pair: Pair, code: str, folder: Path, out: Path, *, is_second: bool) -> Path:
    """Record one version of the program."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "train.py"
    script.write_text(code)
    python = (sys.executable, *(_TWO_RANKS if pair.ranks > 1 else ()))
    named = dict(pair.variables)
    variables = {name: named[name] if is_second else "0" for name in named}
    words = (*python, script, folder)
    harness.collect(words, out, more=VIEW, cwd=folder, env=variables).expect()
    return out


def compared(pair: Pair, folder: Path) -> Difference:
    """Record both versions, and compare them."""
    code = PROGRAM.read_text()
    assert pair.old in code, f"the program does not hold what {pair.name!r} changes"
    changed = code.replace(pair.old, pair.new) if pair.old else code
    if pair.name == "seed of the loader":
        code = changed  # the environment alone decides
    if pair.resumes:
        code = code.replace("        print(", f"{_HALF}        print(")
    first = record(pair, code, folder / "a", folder / "run-a", is_second=False)
    if pair.resumes:
        (folder / "b").mkdir()
        (folder / "a" / "half.pt").rename(folder / "b" / "from.pt")
    second = record(pair, changed, folder / "b", folder / "run-b", is_second=True)
    return traincheck.diff(first, second)


def judged(pair: Pair, found: Difference) -> tuple[str, ...]:
    """The line of the table; its last cell is "right", "no cause", or what is wrong."""
    first, cause = found.first, found.cause
    code = cause.code if cause is not None else ""
    asked = f"step {pair.step}, {pair.phase}" if pair.phase else "same"
    place = (first.where or (cause.where if cause is not None else "")) if first else ""
    told = f"step {first.step}, {first.phase.value}" if first else "same" if found.same else "none"
    if told != asked:
        verdict = "wrong place"
    elif not pair.phase:
        verdict = "right"
    elif not code:
        verdict = "no cause"
    else:
        verdict = "right" if code in pair.causes else "FALSE CAUSE"
    return (pair.name, asked, told, Path(place).name, code, verdict)


def measure(folder: Path, pairs: Sequence[Pair], jobs: int) -> Iterator[tuple[str, ...]]:
    """The lines of all pairs."""
    with ThreadPoolExecutor(jobs) as pool:
        made = [
            pool.submit(compared, pair, folder / str(number)) for number, pair in enumerate(pairs)
        ]
        for pair, one in zip(pairs, made, strict=True):
            yield judged(pair, one.result())


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns 1 if a pair is judged wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.diff_pairs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", help="only pairs whose name holds this")
    parser.add_argument("--jobs", type=int, default=1, help="pairs at the same time")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args(argv)
    pairs = [pair for pair in (*PAIRS, *UNUSED) if options.only in pair.name]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for line in measure(Path(folder), pairs, options.jobs):
            found.append(line)
            print(*line, sep=" | ", file=sys.stderr)
    print(harness.table(HEADER, found))
    rows = [dict(zip(HEADER, line, strict=True)) for line in found]
    harness.write_json(options.json, {"machine": harness.describe_machine(), "lines": rows})
    return int(any(line[-1] not in ("right", "no cause") for line in found))


if __name__ == "__main__":
    sys.exit(main())

"""Grids of runs: what they expand to, that nothing runs twice, that a stopped sweep goes on, and what is reported."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from fedopal_secure import sweep
from fedopal_secure.cli import app
from fedopal_secure.core.errors import InputError
from fedopal_secure.federation.config import SimulationConfig
from fedopal_secure.report import figures, grid
from fedopal_secure.runtimes.result import Environment, Privacy, Prompts, Result, Ridge
from fedopal_secure.sweep import Measured, Runner, Store, distinct, load_grid, run_missing

runner = CliRunner()

CURVE = """
[base]
clients = 5
[base.privacy]
delta = 1e-4
[grid]
"privacy.epsilon" = [1, 4.0, inf]
"privacy.mode" = ["distributed", "local"]
seed = [0, 1]
"""


def accuracy(config: SimulationConfig) -> float:
    """What the fake measures: 0.9 without privacy, less under noise, and a little more for seed 1."""
    private = 0.9 if config.privacy is None else 0.1 * config.privacy.epsilon
    return private + 0.02 * config.seed


class Fake:
    """Measures at once; counts its runs, and is stopped or fails where a test says so."""

    def __init__(self) -> None:
        self.ran: list[SimulationConfig] = []
        self.stop_after = math.inf
        self.fails: Callable[[SimulationConfig], Measured | None] = lambda config: None

    def __call__(self, config: SimulationConfig) -> Measured:
        if len(self.ran) >= self.stop_after:
            raise KeyboardInterrupt
        self.ran.append(config)
        return self.fails(config) or Measured(result(config), 0.2)


def result(config: SimulationConfig) -> Result:
    privacy = config.privacy
    claim = None
    if privacy is not None:
        epsilon = 0.99 * privacy.epsilon
        numbers = (1, "add-remove", epsilon, privacy.delta, 0.1, 3, {"C": 5.0}, 1.25, None)
        claim = Privacy("m", privacy.mode, "image", *numbers, "RDP", True)
    return Result(
        accuracy=accuracy(config),
        accuracy_top5=None,
        test_images=10,
        train_images=40,
        skipped_images=0,
        clients=config.clients,
        sessions=[],
        plain_float32_bytes=1,
        plain_float32_triangle_bytes=1,
        exact=None,
        baseline=None,
        ridge=Ridge("gcv", 0.5),
        prompts=Prompts("none", 0, None, None),
        privacy=claim,
        transcript="",
        timings_s={},
        environment=Environment("3", None, "2", "cpu", None, "0"),
    )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Stands in for real simulations, in the command too."""
    made = Fake()
    monkeypatch.setattr(sweep, "Runner", lambda folder: made)
    return made


def write(tmp_path: Path, text: str = CURVE) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(text)
    return path


def run(*arguments: object, code: int = 0) -> str:
    found = runner.invoke(app, ["sweep", *(str(argument) for argument in arguments)])
    assert found.exit_code == code, found.output
    return found.stdout


def quiet(cell: sweep.Cell, seconds: float) -> None:
    pass


# --- what a grid expands to ---


def test_the_product_of_all_lists_with_equal_configurations_once(tmp_path: Path) -> None:
    cells = load_grid(write(tmp_path))
    assert len(cells) == 3 * 2 * 2
    assert [tuple(cell.values.values()) for cell in cells[:3]] == [
        (1, "distributed", 0),
        (1, "distributed", 1),
        (1, "local", 0),
    ]
    runs = distinct(cells)
    assert len(runs) == 2 * 2 * 2 + 2  # without privacy the mode is of no account
    assert sum(cell.config.privacy is None for cell in runs) == 2
    assert cells[0].config == SimulationConfig.model_validate(
        {"clients": 5, "privacy": {"delta": 1e-4, "epsilon": 1, "mode": "distributed"}}
    )


def test_runs_on_the_same_images_follow_each_other(tmp_path: Path) -> None:
    seeds = [cell.config.seed for cell in distinct(load_grid(write(tmp_path)))]
    assert seeds == [0] * 5 + [1] * 5


def test_a_default_written_out_is_the_same_run(tmp_path: Path) -> None:
    cells = load_grid(write(tmp_path, "[base]\nclients = 12\n[grid]\ncorrupt = [2, 3]\n"))
    default = load_grid(write(tmp_path, "[base]\nclients = 12\n[grid]\nseed = [0]\n"))
    assert [cell.key == default[0].key for cell in cells] == [True, False]


def test_any_field_can_vary_and_dots_need_no_quotes(tmp_path: Path) -> None:
    text = """
    [base.prompts]
    tokens = 3
    [grid]
    alpha = [0.1, inf]
    prompts.mode = ["none", "two-phase"]
    drop = [[], ["upload:1"]]
    [grid.features]
    bits = [8]
    """
    cells = load_grid(write(tmp_path, text))
    assert list(cells[0].values) == ["alpha", "prompts.mode", "drop", "features.bits"]
    assert len(cells) == 8
    last = cells[-1].config
    assert (last.alpha, last.prompts.mode, last.prompts.tokens, last.drop) == (math.inf, "two-phase", 3, ("upload:1",))


def test_another_version_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_grid(write(tmp_path))
    monkeypatch.setattr(sweep, "own_version", lambda: "999")
    assert {cell.key for cell in first}.isdisjoint(cell.key for cell in load_grid(write(tmp_path)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[grid]\nepsilon = [1]", "'epsilon'"),
        ('[grid]\n"privacy.epsilonn" = [1]', "privacy.epsilon"),
        ('[grid]\n"privacy.epsilon" = [1, -1]', "privacy.epsilon = -1: 'privacy.epsilon': Input should be greater"),
        ("[grid]\nseed = []", "'seed' in [grid] is an empty list"),
        ("[grid]\nseed = 3", "'seed' in [grid] is one value"),
        ("[grid]\nseed = [1, 2, 1]", "'seed' in [grid] has a value twice"),
        ('[grid]\nprompts = [{mode="none"}]\n"prompts.mode" = ["none"]', "'prompts.mode'"),
        ('[grid]\n"prompts.mode" = ["none"]\nprompts.mode = ["none"]', "'prompts.mode' stands in [grid] twice"),
        ('[base]\nprompts = 3\n[grid]\n"prompts.mode" = ["none"]', "'prompts' is not a table"),
        ("[base]\nclients = 2\n[grid]\nseed = [0]", "'clients'"),
        ("clients = 5\n[grid]\nseed = [0]", "'clients' is neither [base] nor [grid]"),
        ("base = 3\n[grid]\nseed = [0]", "[base] and [grid] are tables"),
        ("[base]\nclients = 5", "nothing in [grid]"),
        ("[grid", "not valid TOML"),
    ],
)
def test_a_wrong_grid_is_one_line_and_code_2(tmp_path: Path, text: str, words: str, fake: Fake) -> None:
    found = runner.invoke(app, ["sweep", str(write(tmp_path, text)), "--out", str(tmp_path / "out")])
    assert found.exit_code == 2, found.output
    assert found.stdout == ""
    assert "\n" not in found.stderr.strip()
    assert words in found.stderr
    assert not fake.ran
    assert not (tmp_path / "out").exists()


# --- nothing runs twice ---


def test_a_stopped_sweep_goes_on_with_what_is_missing(tmp_path: Path, fake: Fake) -> None:
    cells, store = load_grid(write(tmp_path)), Store(tmp_path / "out")
    fake.stop_after = 4
    with pytest.raises(KeyboardInterrupt):
        run_missing(cells, store, fake, quiet)
    before = fake.ran
    assert len(before) == 4
    fake.ran, fake.stop_after = [], math.inf
    run_missing(cells, store, fake, quiet)
    assert len(fake.ran) == 6
    assert not [config for config in fake.ran if config in before]
    fake.ran = []
    run_missing(cells, store, fake, quiet)
    assert not fake.ran


@pytest.mark.parametrize("damage", ["empty", "cut", "no JSON", "another configuration", "another version", "no result"])
def test_a_cell_whose_file_is_damaged_runs_again(tmp_path: Path, fake: Fake, damage: str) -> None:
    cells, store = load_grid(write(tmp_path)), Store(tmp_path / "out")
    run_missing(cells, store, fake, quiet)
    file = tmp_path / "out" / "cells" / f"{cells[3].key[:16]}.json"
    content = json.loads(file.read_text())
    broken = {
        "empty": "",
        "cut": file.read_text()[:-40],
        "no JSON": "\xff{",
        "another configuration": json.dumps(content | {"config": content["config"] | {"seed": 7}}),
        "another version": json.dumps(content | {"version": "0.0.0"}),
        "no result": json.dumps(content | {"measured": {"result": None, "majority": 0.1}}),
    }
    file.write_text(broken[damage], encoding="latin-1")
    fake.ran = []
    run_missing(cells, store, fake, quiet)
    assert fake.ran == [cells[3].config]
    assert json.loads(file.read_text())["measured"] == content["measured"]


def test_a_new_value_runs_only_what_is_new(tmp_path: Path, fake: Fake) -> None:
    run(write(tmp_path), "--out", tmp_path / "out")
    fake.ran = []
    run(write(tmp_path, CURVE.replace("seed = [0, 1]", "seed = [0, 1, 2]")), "--out", tmp_path / "out")
    assert [config.seed for config in fake.ran] == [2] * 5


def test_the_estimate_is_the_median_times_what_is_left(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 60.0, 60.0, 61.0, 61.0, 62.0, *(float(n) for n in range(62, 200))])
    monkeypatch.setattr(sweep.time, "perf_counter", lambda: next(clock))
    seen: list[float] = []
    run_missing(load_grid(write(tmp_path)), Store(tmp_path), fake, lambda cell, seconds: seen.append(seconds))
    assert seen[:3] == [60.0 * 9, 30.5 * 8, 1.0 * 7]
    assert len(seen) == 10
    assert seen[-1] == 0


# --- cells that fail ---


def test_an_abort_is_recorded_and_stops_no_other(tmp_path: Path, fake: Fake) -> None:
    fake.fails = lambda config: Measured(None, 0.2, "aborted by rule 'x'", True) if config.privacy is None else None
    out = tmp_path / "out"
    found = runner.invoke(app, ["sweep", str(write(tmp_path)), "--out", str(out)])
    assert found.exit_code == 3
    last = found.stderr.strip().splitlines()[-1]
    assert last.startswith("fedopal-secure: 2 of 10 runs failed; with privacy.epsilon = inf")
    assert last.endswith("aborted by rule 'x'")
    assert "failed" in found.stdout
    rows = list(csv.DictReader((out / "cells.csv").open()))
    assert [row["error"] for row in rows if row["privacy.epsilon"] == "inf"] == ["aborted by rule 'x'"] * 4
    assert json.loads((out / "summary.json").read_text())["failed_runs"] == 2
    fake.ran = []
    run(write(tmp_path), "--out", out, code=3)  # it would abort again, so it does not run again
    assert not fake.ran


def test_bad_input_of_one_cell_stops_no_other_and_is_tried_again(tmp_path: Path, fake: Fake) -> None:
    fake.fails = lambda config: Measured(None, 0.2, "give more bits") if config.privacy is None else None
    found = runner.invoke(app, ["sweep", str(write(tmp_path)), "--out", str(tmp_path / "out")])
    assert found.exit_code == 2
    assert "2 of 10 runs failed" in found.stderr
    assert "give more bits" in found.stderr
    fake.ran, fake.fails = [], lambda config: None
    run(write(tmp_path), "--out", tmp_path / "out")
    assert len(fake.ran) == 2


def test_images_that_cannot_be_loaded_stop_the_sweep(tmp_path: Path) -> None:
    text = f"[base]\ndataset = {str(tmp_path / 'nothing')!r}\n[grid]\nseed = [0, 1]\n"
    found = runner.invoke(app, ["sweep", str(write(tmp_path, text)), "--out", str(tmp_path / "out")])
    assert found.exit_code == 2
    assert "nothing" in found.stderr.strip().splitlines()[-1]
    assert not (tmp_path / "out" / "summary.json").exists()


# --- what is reported ---


def test_means_spreads_and_claims(tmp_path: Path, fake: Fake) -> None:
    out = tmp_path / "out"
    found = json.loads(run(write(tmp_path), "--out", out, "--json"))
    assert found == json.loads((out / "summary.json").read_text())
    assert (found["cells"], found["runs"], found["failed_runs"]) == (12, 10, 0)
    groups = {(group["values"]["privacy.epsilon"], group["values"]["privacy.mode"]): group for group in found["groups"]}
    assert len(groups) == 6
    four = groups[4.0, "local"]
    assert (four["cells"], four["lowest"], four["highest"]) == (2, pytest.approx(0.4), pytest.approx(0.42))
    assert four["accuracy"] == pytest.approx(0.41)
    assert four["deviation"] == pytest.approx(np.std([0.4, 0.42], ddof=1))
    assert four["claimed_epsilon"] == pytest.approx(3.96)
    assert groups["inf", "local"]["claimed_epsilon"] is None
    rows = list(csv.DictReader((out / "cells.csv").open()))
    assert len(rows) == 12
    assert len({row["cell"] for row in rows}) == 10
    assert {name: rows[0][name] for name in ("privacy.mode", "seed", "rho", "realised", "rule", "lambda")} == {
        "privacy.mode": "distributed",
        "seed": "0",
        "rho": "0.1",
        "realised": "1.25",
        "rule": "gcv",
        "lambda": "0.5",
    }


def test_a_table_of_epsilons_and_modes(tmp_path: Path, fake: Fake) -> None:
    table = run(write(tmp_path), "--out", tmp_path / "out")
    assert "mean ± standard deviation over 2 seeds" in table
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if "│" in line]
    assert rows == [
        ["1", "11.00 ± 1.41", "11.00 ± 1.41"],
        ["4", "41.00 ± 1.41", "41.00 ± 1.41"],
        ["inf", "91.00 ± 1.41", "91.00 ± 1.41"],
    ]


def test_a_grid_without_epsilon_has_a_table_and_no_figure(tmp_path: Path, fake: Fake) -> None:
    table = run(write(tmp_path, "[grid]\nalpha = [0.1, inf]\n"), "--out", tmp_path / "out")
    assert "0.1" in table
    assert "90.00" in table
    assert not (tmp_path / "out" / "figures").exists()


def test_a_dry_run_runs_and_writes_nothing(tmp_path: Path, fake: Fake) -> None:
    listed = run(write(tmp_path), "--out", tmp_path / "out", "--dry-run").splitlines()
    assert len(listed) == 12
    assert "to do  privacy.epsilon = 1, privacy.mode = distributed, seed = 0" in listed[0]
    assert not fake.ran
    assert not (tmp_path / "out").exists()


def test_curves_and_what_they_are_held_against(tmp_path: Path, fake: Fake) -> None:
    cells, store = load_grid(write(tmp_path)), Store(tmp_path / "out")
    run_missing(cells, store, fake, quiet)
    summary = grid.summarise(cells, store)
    curves = grid.curves(summary)
    assert list(curves) == ["distributed", "local"]
    assert [point.epsilon for point in curves["local"]] == [1, 4]
    assert [point.accuracy for point in curves["local"]] == pytest.approx([0.11, 0.41])
    assert grid.references(summary) == pytest.approx({"no privacy": 0.91, "always the largest class": 0.2})


def test_another_field_that_varies_has_curves_of_its_own(tmp_path: Path, fake: Fake) -> None:
    text = '[base.privacy]\ndelta = 1e-5\n[grid]\n"privacy.epsilon" = [1, inf]\nclients = [5, 9]\n'
    cells, store = load_grid(write(tmp_path, text)), Store(tmp_path / "out")
    fake.fails = lambda config: Measured(result(config), 0.2 + 0.01 * config.clients)
    run_missing(cells, store, fake, quiet)
    summary = grid.summarise(cells, store)
    assert list(grid.curves(summary)) == ["clients = 5", "clients = 9"]
    assert grid.references(summary) == pytest.approx(
        {
            "no privacy": 0.9,
            "always the largest class, clients = 5": 0.25,
            "always the largest class, clients = 9": 0.29,
        }
    )


def colours(path: Path) -> set[str]:
    pixels = (imread(path)[:, :, :3] * 255).round().astype(int).reshape(-1, 3)
    return {f"#{r:02X}{g:02X}{b:02X}" for r, g, b in np.unique(pixels, axis=0)}


def test_the_figure_has_a_curve_for_each_mode(tmp_path: Path, fake: Fake) -> None:
    run(write(tmp_path), "--out", tmp_path / "out")
    found = colours(tmp_path / "out" / "figures" / "accuracy_epsilon.png")
    assert {figures._COLOURS[0], figures._COLOURS[1]} <= found
    assert figures._COLOURS[2] not in found


def test_without_matplotlib_the_rest_is_there(tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fedopal_secure.report.figures")
    monkeypatch.delattr("fedopal_secure.report.figures")
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    found = runner.invoke(app, ["sweep", str(write(tmp_path)), "--out", str(tmp_path / "out")])
    assert found.exit_code == 0, found.output
    assert 'pip install "fedopal-secure[plots]"' in found.stderr
    assert (tmp_path / "out" / "summary.json").exists()
    assert not (tmp_path / "out" / "figures").exists()


def test_the_cost_of_calibrating_to_fewer_survivors(tmp_path: Path) -> None:
    figures.calibration_cost(tmp_path / "new" / "cost.png", 12, 2)
    assert set(figures._COLOURS[:5]) <= colours(tmp_path / "new" / "cost.png")
    with pytest.raises(InputError, match="make no cohort"):
        figures.calibration_cost(tmp_path / "cost.png", 5, 4)


def test_curves_far_above_a_level_are_not_pressed_into_a_corner(tmp_path: Path) -> None:
    tall = []
    for level in (0.85, 0.1):
        path = tmp_path / f"{level}.png"
        figures.accuracy_epsilon(path, {"local": [(1, 0.9, 0), (2, 0.95, 0)]}, {"level": level}, "", "")
        pixels = (imread(path)[:, :, :3] * 255).round().astype(int)
        curve, grey = ((pixels == colour).all(axis=2) for colour in ((0x00, 0x72, 0xB2), (0x59, 0x59, 0x59)))
        assert grey.sum(axis=1).max() > 300  # the level is drawn, from side to side
        rows = np.flatnonzero(curve[: len(curve) * 3 // 4].any(axis=1))  # above the legend
        tall.append(int(rows[-1] - rows[0]))
    assert tall[1] > 5 * tall[0]


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no curve"):
        figures.accuracy_epsilon(tmp_path / "x.png", {}, {"no privacy": 0.9}, "", "")


# --- real simulations ---


REAL = """
[base]
dataset = "{images}"
clients = 4
corrupt = 0
alpha = inf
max_images = 256
[base.privacy]
delta = 1e-3
[grid]
"privacy.epsilon" = [20, inf]
seed = [0, 1]
"""


@pytest.fixture
def real(tmp_path: Path) -> str:
    """A grid over 120 small grey images, of which class b has most."""
    rng = np.random.default_rng(0)
    classes = np.array(["a", "b", "c"])
    labels = {"y_train": np.arange(120) % 3, "y_test": np.array([0, 1, 1, 1, 2] * 4)}
    images = {f"x{name[1:]}": rng.integers(0, 90, (len(y), 16, 16), np.uint8) for name, y in labels.items()}
    for name, pictures in images.items():
        pictures[:, :8] += np.uint8(70) * labels[f"y{name[1:]}"].astype(np.uint8)[:, None, None]
    np.savez(tmp_path / "images.npz", classes=classes, **images, **labels)
    return REAL.replace("{images}", str(tmp_path / "images.npz"))


def same(result: Result) -> dict[str, object]:
    """A result without what no two runs have in common."""
    return msgspec.to_builtins(msgspec.structs.replace(result, timings_s={}))


def test_a_cell_is_what_simulate_gives_whether_features_were_cached_or_not(tmp_path: Path, real: str) -> None:
    from fedopal_secure.runtimes.simulation import simulate

    cells, store = load_grid(write(tmp_path, real)), Store(tmp_path / "out")
    assert run_missing(cells, store, Runner(tmp_path / "features"), quiet) == []
    assert len(list((tmp_path / "features").iterdir())) == 1
    again = Store(tmp_path / "again")
    run_missing(cells[:1], again, Runner(tmp_path / "features"), quiet)  # with every feature from the file
    for cell in cells:
        expected = simulate(cell.config).result
        record = store.get(cell)
        assert record is not None
        assert record.measured.result is not None
        assert same(record.measured.result) == same(expected)
        assert record.measured.majority == 0.6
        if cell is cells[0]:
            cached = again.get(cell)
            assert cached is not None
            assert cached.measured.result is not None
            assert same(cached.measured.result) == same(expected)


def test_images_are_loaded_once_for_all_runs_on_them(
    tmp_path: Path, real: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedopal_secure.runtimes import setup

    loaded: list[int] = []
    load = setup.load_images

    def counting(config: SimulationConfig, backbone: object) -> object:
        loaded.append(config.seed)
        return load(config, backbone)

    monkeypatch.setattr(setup, "load_images", counting)
    text = real.replace('"privacy.epsilon" = [20, inf]', "alpha = [0.1, inf]").replace(
        "[base.privacy]\ndelta = 1e-3", ""
    )
    run_missing(load_grid(write(tmp_path, text)), Store(tmp_path / "out"), Runner(tmp_path / "features"), quiet)
    assert loaded == [0, 1]


def test_a_real_abort_names_clients_as_the_simulation_does(tmp_path: Path) -> None:
    text = '[base]\ntrain_limit = 60\nclients = 3\n[grid]\ndrop = [["upload:1"]]\n'
    cells = load_grid(write(tmp_path, text))
    measured = Runner(tmp_path / "features")(cells[0].config)
    assert measured.result is None
    assert measured.aborted
    assert "min_survivors" in measured.error
    refused = Runner(tmp_path / "features")(cells[0].config.model_copy(update={"drop": ("nonsense:1",)}))
    assert not refused.aborted
    assert "nonsense" in refused.error


def test_the_example_is_a_grid() -> None:
    cells = load_grid(Path(__file__).parents[1] / "examples" / "dp_curve.toml")
    assert len(cells) == 3 * 7 * 5
    assert len(distinct(cells)) == 3 * 6 * 5 + 5

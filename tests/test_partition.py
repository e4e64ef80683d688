"""`carillon partition` as a user runs it: models in, groups out."""

from __future__ import annotations

import json
import random
import subprocess

import pytest


def run(program, *arguments, status=0):
    done = subprocess.run([str(program), "partition", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def write(file, document):
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def models(seed, count, groups):
    dice = random.Random(seed)
    document = {"memory_bytes": 0, "models": [
        {"name": f"m{i}", "rate_rps": dice.expovariate(0.01), "static_bytes": dice.randrange(10**7, 10**9),
         "dynamic_bytes": dice.randrange(10**8)} for i in range(count)]}
    document["memory_bytes"] = sum(m["static_bytes"] for m in document["models"]) * 11 // 10 // groups + 10**8
    document["max_rate_rps"] = 1.1 * sum(m["rate_rps"] for m in document["models"]) / groups
    return document


def check(document, groups, told):
    """Every model is in one group, the groups keep the bounds, and the figures are those of the groups."""
    by_name = {m["name"]: m for m in document["models"]}
    assert len(told["groups"]) == groups
    assert sorted(name for g in told["groups"] for name in g["models"]) == sorted(by_name)
    for group in told["groups"]:
        held = [by_name[name] for name in group["models"]]
        assert group["rate_rps"] == pytest.approx(sum(m["rate_rps"] for m in held), abs=1e-3)
        assert group["rate_rps"] <= document.get("max_rate_rps", float("inf"))
        assert group["static_bytes"] == sum(m["static_bytes"] for m in held)
        assert group["peak_bytes"] == group["static_bytes"] + max((m.get("dynamic_bytes", 0) for m in held), default=0)
        assert group["peak_bytes"] <= document["memory_bytes"]
    for name, field in (("load_imbalance", "rate_rps"), ("memory_imbalance", "static_bytes")):
        sums = [group[field] for group in told["groups"]]
        assert told[name] == pytest.approx((max(sums) - min(sums)) * groups / sum(sums), abs=1e-9)
    assert 0 <= told["bound"] <= told["objective"] <= told["load_imbalance"] + told["memory_imbalance"]


def placed(told):
    return {name: i for i, group in enumerate(told["groups"]) for name in group["models"]}


def test_groups_are_balanced(program, tmp_path):
    document = models(1, 200, 5)
    file = write(tmp_path / "models.json", document)
    first = run(program, file, "--groups", 5, "--time-limit", 0, "--json")
    told = json.loads(first.stdout)
    check(document, 5, told)
    assert told["load_imbalance"] < 0.002 and told["memory_imbalance"] < 0.002
    assert told["move_cost"] == 0 and "changes" not in told
    assert first.stderr == ""
    table = run(program, file, "--groups", 5, "--time-limit", 0).stdout
    assert len(table.splitlines()) == 1 + 5 + 3 and "imbalance" in table


def test_small_divisions_are_proved(program, tmp_path):
    document = models(5, 10, 3)
    file = write(tmp_path / "models.json", document)
    done = run(program, file, "--groups", 3, "--time-limit", 60, "--json")
    told = json.loads(done.stdout)  # and nothing else: CBC prints to standard output by itself
    check(document, 3, told)
    assert told["proved"] and told["objective"] == pytest.approx(told["bound"], abs=1e-6)
    assert told["bound"] > 0
    assert done.stderr == ""
    assert ": proved to be the best" in run(program, file, "--groups", 3, "--time-limit", 60).stdout
    # Five models of three bytes do not fit two groups of eight, though 15 is less than 16.
    write(file, {"memory_bytes": 8, "models": [{"name": f"m{i}", "rate_rps": 1, "static_bytes": 3} for i in range(5)]})
    assert "no division can exist: in the closest one" in run(program, file, "--groups", 2, status=2).stderr
    assert "no division was found: in the closest one" in run(program, file, "--groups", 2, "--time-limit", 0,
                                                              status=2).stderr


def test_the_same_input_gives_the_same_bytes(program, tmp_path):
    file = write(tmp_path / "models.json", models(2, 90, 7))
    arguments = (file, "--groups", 7, "--json", "--seed", 3, "--time-limit", 0)
    assert run(program, *arguments).stdout == run(program, *arguments).stdout


def test_a_division_in_force_changes_within_the_bound(program, tmp_path):
    document = models(3, 100, 4)
    alone = ("--time-limit", 0)
    file = write(tmp_path / "models.json", document)
    now = json.loads(run(program, file, "--groups", 4, *alone, "--json").stdout)
    current = write(tmp_path / "current.json", now)
    kept = json.loads(run(program, file, "--groups", 4, *alone, "--current", current, "--max-move", 0, "--json").stdout)
    assert placed(kept) == placed(now)
    assert kept["changes"] == {"moved": 0, "added": 0, "removed": 0}

    dice = random.Random(4)
    for m in document["models"]:
        m["rate_rps"] *= dice.uniform(0.9, 1.1)
        m["move_cost"] = 2
    document["models"][0]["name"] = "new"
    write(file, document)
    told = json.loads(run(program, file, "--groups", 4, *alone, "--current", current, "--max-move", 24, "--json").stdout)
    check(document, 4, told)
    was, is_ = placed(now), placed(told)
    moved = sum(was[name] != group for name, group in is_.items() if name in was)
    assert told["changes"] == {"moved": moved, "added": 1, "removed": 1}
    assert told["move_cost"] == 2 * moved <= 24
    assert told["load_imbalance"] < 0.01
    table = run(program, file, "--groups", 4, *alone, "--current", current, "--max-move", 24).stdout
    assert f"moved {moved} models at a cost of {2 * moved}; 1 are new, 1 are gone" in table

    # A group that ends: its models have to move.
    ends = sum(m["move_cost"] for m in document["models"] if was.get(m["name"]) == 3)
    document["memory_bytes"] *= 2
    document["max_rate_rps"] *= 2
    write(file, document)
    told = json.loads(run(program, file, "--groups", 3, *alone, "--current", current, "--max-move", ends, "--json").stdout)
    assert told["move_cost"] == ends
    wrong = run(program, file, "--groups", 3, *alone, "--current", current, "--max-move", ends - 1, status=2).stderr
    assert f"--max-move {ends - 1} is too small" in wrong and f"costs {ends}" in wrong


SMALL = {"memory_bytes": 10, "models": [{"name": "a", "rate_rps": 1, "static_bytes": 6},
                                        {"name": "b", "rate_rps": 2, "static_bytes": 6}]}


@pytest.mark.parametrize("document, arguments, words", [
    ("nothing", ["--groups", 1], "not a JSON document"),
    ({**SMALL, "models": SMALL["models"] * 2}, ["--groups", 1], "models[2].name: is 'a' like that of models[0]"),
    (json.dumps(SMALL).replace('"rate_rps": 1', '"rate_rps": NaN'), ["--groups", 1], "not a JSON document"),
    (json.dumps(SMALL).replace('"rate_rps": 1', '"rate_rps": -1'), ["--groups", 1], "models[0].rate_rps: is -1"),
    (json.dumps(SMALL).replace('"static_bytes": 6', '"static_bytes": 1e15', 1), ["--groups", 1],
     "models[0].static_bytes: is 1e+15"),
    (SMALL, ["--groups", 0], "--groups is 0"),
    (SMALL, ["--groups", 3], "--groups is 3"),
    (SMALL, ["--groups", 20_000], "--groups is 20000"),
    (SMALL, ["--groups", 1], "are 12 together, but 1 groups of memory_bytes 10 hold 10; at least 2 groups"),
    ({**SMALL, "memory_bytes": 5}, ["--groups", 2], "model 'a' fits no group"),
    ({**SMALL, "max_rate_rps": 1.5}, ["--groups", 2], "model 'b' fits no group: its rate_rps is 2"),
    (SMALL, ["--groups", 2, "--max-move", 1], "--max-move goes with --current alone"),
    (SMALL, ["--groups", 2, "--current", "CURRENT", "--max-move", 5],
     "--max-move 5 is too small: no division exists that keeps"),
    (SMALL, ["--groups", 2, "--current", "STRANGE"], "name none of the models to divide"),
    (SMALL, ["--groups", 2, "--current", "MISSING"], "no such file"),
    (SMALL, ["--groups", 2, "--current", "CURRENT", "--max-move", -1], "--max-move"),
    (SMALL, [], "--groups is required"),
])
def test_errors_say_what_is_wrong(program, tmp_path, document, arguments, words):
    write(tmp_path / "CURRENT", {"groups": [{"models": ["a", "b"]}]})
    write(tmp_path / "STRANGE", {"groups": [{"models": ["x"]}]})
    file = write(tmp_path / "models.json", document)
    arguments = [tmp_path / a if str(a).isupper() else a for a in arguments]
    done = subprocess.run([str(program), "partition", str(file), *map(str, arguments)], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode in (1, 2) and done.stdout == ""
    assert words in done.stderr
    assert len(done.stderr.splitlines()) <= 2

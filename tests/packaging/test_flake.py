"""flake.nix against a stand-in for nixpkgs: it evaluates, has the promised outputs, and names the lock file's packages.

What it takes to fetch and build the real packages is not shown here: `nix flake check` does that where there is a network.
"""

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from lab import system
from lab.run import LabError
from tests.packaging.nix import Nix, NixError, call

SYSTEMS = ("x86_64-linux", "aarch64-linux", "aarch64-darwin")
OUTPUTS = {
    "packages": {"default"},
    "apps": {"default", "test"},
    "devShells": {"default"},
    "checks": {"lint", "types", "golden", "package"},
}
# The snippets that unit tests run are for hosts, which are Linux machines.
ON_LINUX = {"checks": {"unit"}}
# Attributes have the lock file's names (PEP 503), with these exceptions.
IN_LOCK_ONLY = {
    "ast-serialize": "came with mypy 2; nixpkgs' mypy brings what its own version needs, and may be an older one",
}
IN_FLAKE_ONLY = {
    "pip": "the lab fetches the locked router with it; a virtual environment has it from the start",
}


def problems(nix: Nix, flake: Path) -> list[str]:
    """Return everything that is wrong with the flake in a folder."""
    checked = nix.on("flake check", flake, "", "--no-build", *nix.every_system())
    if checked.returncode:
        return [checked.stderr]
    try:
        return [*outputs(nix, flake), *systems(nix, flake), *packages(nix, flake)]
    except NixError as error:
        return [str(error)]


def outputs(nix: Nix, flake: Path) -> list[str]:
    """Return which outputs are missing, and which nobody promised."""
    shown = nix.json_on("flake show", flake, "", *nix.every_system())
    wanted = {f"{kind}.{name}.{one}" for kind, names in OUTPUTS.items() for name in SYSTEMS for one in names}
    wanted |= {
        f"{kind}.{name}.{one}" for kind, names in ON_LINUX.items() for name in SYSTEMS if "linux" in name for one in names
    }
    wanted |= {f"formatter.{name}" for name in SYSTEMS}
    found = {".".join(path) for path in leaves(shown)}
    return [f"{one} is missing" for one in sorted(wanted - found)] + [
        f"{one} is not promised" for one in sorted(found - wanted)
    ]


def leaves(tree: dict[str, Any], *path: str) -> list[tuple[str, ...]]:
    if "type" in tree:
        return [path]
    return [leaf for name, below in tree.items() for leaf in leaves(below, *path, name)]


def systems(nix: Nix, flake: Path) -> list[str]:
    """Return which derivations are for another system than the one they are offered to."""
    found = [
        (f"{kind}.{offered}.{name}", offered, made_for)
        for kind in ("packages", "devShells", "checks")
        for offered, ones in nix.json_on("eval", flake, f"#{kind}", "--apply", _EACH.format("one.system")).items()
        for name, made_for in ones.items()
    ]
    return [f"{name} is made for {made_for}" for name, offered, made_for in found if offered != made_for]


_EACH = "builtins.mapAttrs (_: builtins.mapAttrs (_: one: {}))"


def packages(nix: Nix, flake: Path) -> list[str]:
    """Return in what the shell's Python packages differ from requirements.lock, and the lists from pyproject.toml."""
    lists: dict[str, list[str]] = json.loads(nix.run("eval", "--json", "--file", str(flake / "nix" / "python.nix")).stdout)
    project = tomllib.loads((flake / "pyproject.toml").read_text())["project"]
    direct = {normal(one) for one in project["dependencies"]}
    development = {normal(one) for one in project["optional-dependencies"]["dev"]}
    locked = {normal(line) for line in re.findall(r"^[^\s#-]\S*==", (flake / "requirements.lock").read_text(), re.MULTILINE)}
    there = {
        name
        for names in nix.json_on("eval", flake, f"#devShells.{nix.system}.default.packages", "--apply", _NAMES)
        for name in names
    }
    differences = [
        ("requirements.lock has {}, the shell of the flake has not", locked - there - IN_LOCK_ONLY.keys()),
        ("the shell of the flake has {}, requirements.lock has not", python_names(lists) - locked - IN_FLAKE_ONLY.keys()),
        ("nix/python.nix names {}, but the shell has not got it", python_names(lists) - there),
        ("pyproject.toml depends on {}, `runtime` of nix/python.nix has not got it", direct - set(lists["runtime"])),
        ("`runtime` of nix/python.nix has {}, pyproject.toml does not depend on it", set(lists["runtime"]) - direct),
        ("`dev` of pyproject.toml has {}, nix/python.nix has not", development - set(lists["development"] + lists["programs"])),
        ("{} is an exception without need", IN_LOCK_ONLY.keys() - locked | IN_FLAKE_ONLY.keys() - there),
    ]
    return [text.format(name) for text, names in differences for name in sorted(names)]


# A Python environment of the stand-in knows its modules, everything else its own name.
_NAMES = "map (package: package.modules or [ package.pname ])"


def python_names(lists: dict[str, list[str]]) -> set[str]:
    return {name for names in lists.values() for name in names}


def normal(requirement: str) -> str:
    """Return the name in a requirement, normalised as PEP 503 says."""
    name = re.match(r"[\w.-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name.group()).lower()


def test_it_evaluates_and_has_what_is_promised(nix: Nix, flake: Path) -> None:
    assert problems(nix, flake) == []


@pytest.mark.parametrize(
    ("file", "before", "after", "said"),
    [
        pytest.param("flake.nix", "systems = [", "systems = [[", "syntax error", id="syntax"),
        pytest.param("flake.nix", "test = app", "tset = app", "apps.aarch64-darwin.test is missing", id="missing output"),
        pytest.param("flake.nix", "pkgs.openssh", "pkgs.opennssh", "attribute 'opennssh' missing", id="unknown attribute"),
        pytest.param("nix/python.nix", '    "idna"\n', "", "requirements.lock has idna,", id="a package missing"),
        pytest.param(
            "nix/python.nix", '    "requests"\n', "", "pyproject.toml depends on requests,", id="a dependency missing"
        ),
        pytest.param("flake.nix", '"aarch64-darwin"', '"aarch64-darvin"', "'aarch64-darvin' missing", id="a wrong system"),
        pytest.param("flake.nix", '        "aarch64-linux"\n', "", "packages.aarch64-linux.default is missing", id="no system"),
        pytest.param(
            "flake.nix",
            "legacyPackages.${system}",
            "legacyPackages.x86_64-linux",
            "packages.aarch64-darwin.default is made for x86_64-linux",
            id="another system's packages",
        ),
    ],
)
def test_a_broken_flake_is_seen(nix: Nix, flake: Path, file: str, before: str, after: str, said: str) -> None:
    text = (flake / file).read_text()
    assert text.count(before) == 1
    (flake / file).write_text(text.replace(before, after))
    assert said in "\n".join(problems(nix, flake))


def test_the_lock_is_the_flakes_and_pins_a_revision_and_its_hash(nix: Nix, flake: Path) -> None:
    pinned = nix.json("flake", "metadata", f"path:{flake}", "--no-update-lock-file")["locks"]["nodes"]["nixpkgs"]["locked"]
    assert re.fullmatch(r"[0-9a-f]{40}", pinned["rev"])
    assert re.fullmatch(r"sha256-[A-Za-z0-9+/]{43}=", pinned["narHash"])


def test_a_lock_of_another_input_is_refused(nix: Nix, flake: Path) -> None:
    text = (flake / "flake.nix").read_text()
    (flake / "flake.nix").write_text(text.replace("nixos-26.05", "nixos-25.11"))
    with pytest.raises(NixError):
        nix.json("flake", "metadata", f"path:{flake}", "--no-update-lock-file")


def test_nix_develop_lists_the_tasks(nix: Nix, whole: Path) -> None:
    done = nix.on("develop", whole, "", "-c", "invoke", "--list")
    assert "lab.up" in done.stdout, done.stderr


@pytest.mark.parametrize("attribute", ["checks.{}.lint", "checks.{}.package", "formatter.{}", "apps.{}.test.program"])
def test_it_builds(nix: Nix, whole: Path, attribute: str) -> None:
    name = attribute.format(nix.system)
    if name.startswith("apps"):
        done = nix.on("run", whole, "#test", "--", "--help")
    else:
        done = nix.on("build", whole, f"#{name}", "--no-link", "--print-build-logs")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_installed_tool_works_on_the_folder_it_is_called_in_with_its_own_code(
    nix: Nix, whole: Path, tmp_path: Path
) -> None:
    program = nix.json_on("eval", whole, f"#apps.{nix.system}.default.program")
    assert nix.on("build", whole, "#default", "--no-link").returncode == 0
    site = tmp_path / "site"
    shutil.copytree(whole / "hosts", site / "hosts")
    (site / "lodger").mkdir()
    (site / "lodger" / "__init__.py").write_text("raise SystemExit('code was taken from the folder')\n")
    (site / "hosts" / "node1.yml").rename(site / "hosts" / "other.yml")

    rendered = call(program, site, "render", "--host", "other", "--out", str(tmp_path / "out"))
    assert rendered.returncode == 0, rendered.stderr
    assert (tmp_path / "out" / "other" / "worker-a" / "compose.yml").is_file()

    asked = call(program, site, "verify", "--host", "other", "--dry-run", "--json")
    assert asked.returncode == 0, asked.stderr
    assert "test_worker.py" in asked.stdout

    assert call(program, site, "lab.status").stdout == "node2: absent\nother: absent\n"

    unknown = call(program, site, "plan", "--host", "node1")
    assert unknown.returncode == 2
    assert "node2, other" in unknown.stderr


def test_elsewhere_than_on_debian_the_missing_evaluator_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="packages or their like are missing: nix-bin"):
        Nix(tmp_path / "nix")


def test_where_there_is_no_linux_the_lab_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(LabError, match="there is no lab on this machine") as refused:
        system.ensure()
    assert "every other task works" in refused.value.hint

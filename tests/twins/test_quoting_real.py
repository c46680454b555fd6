"""Whatever text the inventory accepts, the real Compose and the real systemd read as that text, and the real shell too.

Each example is a whole inventory with strange texts in every field that takes one; many go into one call of a twin.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from lab.twin import Twin
from lodger import inventory
from lodger.host.command import quote
from lodger.inventory import Fleet
from lodger.release.quoting import exec_word
from lodger.release.render import render
from lodger.release.service import Release

TWINS = ()
HOSTS = Path(__file__).parents[2] / "hosts"
NASTY = [
    "$HOME ${HOME:-x} $$ $(id) `id`",
    """it's "quoted" \\" \\' \\\\""",
    "%n %% %i %h 100%",
    "a: b # c",
    "[x, {y: z}] & *a !t |>",
    "; false | true > /dev/null",
    "trailing backslash \\",
    "\\x41 \\u0041 \\n \\s",
    "~ null yes 012 1e3",
    "'",
    '"',
    "实验室 🚀 é",
    "${BROKEN",
]
texts = st.sampled_from(NASTY) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(str.isprintable)
values = texts.filter(lambda text: text[0] != "-")
folders = values.map(lambda text: text.replace("/", "|")).filter(lambda text: text not in (".", ".."))
sites = st.fixed_dictionaries(
    {
        "served_name": values,
        "directory": folders,
        "models_dir": folders,
        "revision": values,
        "reasoning_parser": values,
        "tool_call_parser": values,
        "quantization": values,
        "extra_args": st.lists(texts, max_size=4),
    }
)
# Each of the texts above, in every field of one site.
everywhere: list[dict[str, Any]] = [
    {
        **dict.fromkeys(("served_name", "revision", "reasoning_parser", "tool_call_parser", "quantization"), text),
        **dict.fromkeys(("directory", "models_dir"), text.replace("/", "|")),
        "extra_args": [text, f"-{text}"],
    }
    for text in NASTY
]
# Every example of a batch goes through the real programs, so that one call tests many; a failure shows all of it.
batches = settings(
    max_examples=2,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def written(site: dict[str, Any]) -> Fleet:
    """Load an inventory with these texts, from files as a person would have written them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(HOSTS / "node1.yml", folder)
        fleet, node1 = (HOSTS / "fleet.yml").read_text(), (HOSTS / "node1.yml").read_text()

        def text(key: str) -> str:
            return json.dumps(site[key], ensure_ascii=False)

        for old, new in (
            ("served_name: qwen3.8-27b", f"served_name: {text('served_name')}"),
            ("directory: Qwen3.8-27B-FP8", f"directory: {text('directory')}"),
            ("revision: 017b9c7af6b5689d5dd426a76e0bc077eb5ca20a", f"revision: {text('revision')}"),
            ("reasoning_parser: qwen3 ", f"reasoning_parser: {text('reasoning_parser')} "),
            (
                "tool_call_parser: qwen3_coder",
                f"tool_call_parser: {text('tool_call_parser')}\n    extra_args: {text('extra_args')}",
            ),
            ("quantization: unquant", f"quantization: {text('quantization')}"),
        ):
            assert fleet.count(old) == 1, old
            fleet = fleet.replace(old, new)
        (folder / "fleet.yml").write_text(fleet)
        models_dir = json.dumps(f"/data/{site['models_dir']}", ensure_ascii=False)
        (folder / "node1.yml").write_text(node1.replace("models_dir: /data/models", f"models_dir: {models_dir}"))
        return inventory.load(folder)


def releases(batch: list[dict[str, Any]]) -> list[Release]:
    fleets = [written(site) for site in batch]
    return [render(fleet, fleet.hosts["node1"]) for fleet in fleets]


def content(release: Release, path: str) -> str:
    return next(file.content for file in release.files if file.path == path)


READ_COMPOSE = """
import json, subprocess, sys, tempfile
answers = []
for content in json.load(sys.stdin):
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        file.write(content)
        file.flush()
        argv = ["docker", "compose", "-p", "lodger-worker-a", "-f", file.name, "config", "--format", "json"]
        done = subprocess.run(argv, capture_output=True, text=True, cwd="/", env={"PATH": "/usr/bin:/bin", "HOME": "/root"})
        answers.append([done.returncode, done.stdout, done.stderr])
json.dump(answers, sys.stdout)
"""


@batches
@given(st.lists(sites, min_size=15, max_size=15))
@example(everywhere)
def test_compose_reads_each_text_as_it_was_written(node1: Twin, batch: list[dict[str, Any]]) -> None:
    files = [content(release, "worker-a/compose.yml") for release in releases(batch)]
    answers = json.loads(node1.exec(["python3", "-c", READ_COMPOSE], stdin=json.dumps(files)).stdout)
    assert len(answers) == len(batch)
    for site, (code, output, errors) in zip(batch, answers, strict=True):
        assert (code, errors) == (0, ""), site
        engine = json.loads(output)["services"]["engine"]
        # `config` prints a file that Compose could read again: every $ doubled once more.
        command = [word.replace("$$", "$") for word in engine["command"]]
        after = {
            flag: command[command.index(f"--{flag}") + 1] for flag in ("model-path", "served-model-name", "weight-version")
        }
        assert after == {
            "model-path": f"/models/{site['directory']}",
            "served-model-name": site["served_name"],
            "weight-version": site["revision"],
        }
        assert command[command.index("--tool-call-parser") + 1] == site["tool_call_parser"]
        assert command[command.index("--reasoning-parser") + 1] == site["reasoning_parser"]
        assert command[command.index("--speculative-draft-model-quantization") + 1] == site["quantization"]
        assert command[len(command) - len(site["extra_args"]) :] == site["extra_args"]
        (volume,) = engine["volumes"]
        assert volume["source"].replace("$$", "$") == f"/data/{site['models_dir']}"


READ_UNITS = """
import json, pathlib, subprocess, sys
folder, units, answers = pathlib.Path("/run/systemd/system"), [], []
for number, content in enumerate(json.load(sys.stdin)):
    units.append(folder / f"quoting-{number}.service")
    units[-1].write_text(content)
try:
    verified = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    for unit in units:
        show = ["systemctl", "show", "--value", "-p", "Description", unit.name]
        answers.append(subprocess.run(show, capture_output=True, text=True, check=True).stdout)
finally:
    for unit in units:
        unit.unlink()
    subprocess.run(["systemctl", "daemon-reload"], check=True)
json.dump([verified.returncode, verified.stdout + verified.stderr, answers], sys.stdout)
"""


@batches
@given(st.lists(sites, min_size=15, max_size=15))
@example(everywhere)
def test_systemd_finds_nothing_to_say_about_a_unit_and_shows_its_text_as_written(
    node1: Twin, batch: list[dict[str, Any]]
) -> None:
    files = [content(release, "units/lodger-worker-a.service") for release in releases(batch)]
    code, output, shown = json.loads(node1.exec(["python3", "-c", READ_UNITS], stdin=json.dumps(files)).stdout)
    assert (code, output) == (0, "")
    assert [text.removesuffix("\n") for text in shown] == [
        f"Lodger worker a on node1 ({site['served_name']} on GPUs 0 1 2 3)" for site in batch
    ]


RUN_UNIT = """
import json, pathlib, subprocess, sys
unit, output = pathlib.Path("/run/systemd/system/quoting-exec.service"), pathlib.Path("/run/quoting-exec")
unit.write_text(sys.stdin.read())
try:
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    subprocess.run(["systemctl", "start", unit.name], check=True)
    json.dump(output.read_bytes().decode().split("\\0")[:-1], sys.stdout)
finally:
    unit.unlink()
    output.unlink(missing_ok=True)
    subprocess.run(["systemctl", "daemon-reload"], check=True)
"""


@batches
@given(st.lists(texts, min_size=40, max_size=40))
@example(NASTY)
def test_systemd_hands_each_word_to_the_program_as_it_was_written(node1: Twin, words: list[str]) -> None:
    line = " ".join(map(exec_word, ["/usr/bin/printf", r"%s\0", *words]))
    unit = f"[Service]\nType=oneshot\nStandardOutput=file:/run/quoting-exec\nExecStart={line}\n"
    assert json.loads(node1.exec(["python3", "-c", RUN_UNIT], stdin=unit).stdout) == words


@batches
@given(st.lists(texts, min_size=40, max_size=40))
@example(NASTY)
def test_shell_hands_each_word_to_the_program_as_it_was_written(node1: Twin, words: list[str]) -> None:
    assert node1.exec(quote(["printf", r"%s\0", *words])).stdout.split("\0")[:-1] == words

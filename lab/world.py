"""What a twin is told about itself: /etc/twin.json and the files of its neighbours, all derived from one host file. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.image import REGISTRY
from lab.run import CHECKOUT

Yaml = Mapping[str, Any]
NOTEBOOK = "colleague/notebook:2024.1"
ENGINE = f"{REGISTRY}/lmsysorg/sglang:v0.5.19-cu129"
SERVICE = CHECKOUT / "lab" / "gpu" / "gpu_service.py"
# A replaced neighbour fills the cards as a serving engine does: 24 GiB less what a desktop card keeps for itself and a margin.
REPLACED_MEMORY_MIB = 20480


@dataclass(frozen=True)
class File:
    """A file to lay into a twin; a link when `link` is set."""

    text: str = ""
    mode: int = 0o644
    link: str = ""
    owner: int = 0


@dataclass
class World:
    """What a twin gets before its first boot."""

    spec: dict[str, Any]
    files: dict[str, File] = field(default_factory=dict)


def world(host: Yaml, fleet: Yaml, models_dir: Path, machine_id: str, clock: float) -> World:
    """Derive a twin's surroundings from its host file and the fleet; `models_dir` holds the models' own small files."""
    gpus = host["gpus"]
    spec: dict[str, Any] = {
        "machine_id": machine_id,
        "gpus": {"model": gpus["model"], "count": gpus["count"], "memory_mib": gpus["memory_mib"]},
        "driver": str(host["driver"]),
        "clock": clock,
        "models_dir": host["models_dir"],
        "models": [_model(name, model, models_dir / name) for name, model in fleet.get("models", {}).items()],
        "commands": [],
    }
    made = World(spec)
    _always(made)
    for name, neighbour in host.get("neighbours", {}).items():
        _neighbour(made, name, neighbour, host)
    return made


def _always(made: World) -> None:
    """Add what Lodger has never heard of, to see that it leaves it alone."""
    made.spec["commands"] += [
        ["docker", "run", "-d", "--name", "colleague-notebook", "--restart", "always", "-p", "8888:8888", "-v", "colleague-work:/work", NOTEBOOK,
         "python3", "/opt/notebook/notebook.py", "--name", "notebook", "--port", "8888"],
        ["docker", "run", "--name", "colleague-migration", NOTEBOOK, "true"],
    ]  # fmt: skip
    _unit(
        made, "colleague-metrics.service", "/opt/colleague-metrics/metrics.py", "--name metrics --port 9100", user="colleague"
    )
    made.files |= {
        "/etc/systemd/system/colleague-backup.service": File(
            "[Unit]\nDescription=Colleague's backup\n\n[Service]\nType=oneshot\nExecStart=/bin/true\n"
        ),
        "/etc/systemd/system/colleague-backup.timer": File(
            "[Unit]\nDescription=Colleague's nightly backup\n\n[Timer]\nOnCalendar=*-*-* 03:30:00\n\n[Install]\nWantedBy=timers.target\n"
        ),
        "/etc/systemd/system/timers.target.wants/colleague-backup.timer": File(
            link="/etc/systemd/system/colleague-backup.timer"
        ),
    }


def _neighbour(made: World, name: str, neighbour: Yaml, host: Yaml) -> None:
    """Add a neighbour of any kind. It has all GPUs open; one that is replaced fills them and has the first worker's port."""
    replaced = neighbour.get("policy") == "replace"
    ports = [worker["port"] for worker in host.get("workers", {}).values()]
    gpus = ",".join(map(str, range(host["gpus"]["count"])))
    memory = neighbour.get("gpu_memory_mib", REPLACED_MEMORY_MIB if replaced else 512)
    port = ports[0] if replaced and ports else 0
    label = name.removesuffix(".service")
    options = f"--name {label} --gpus {gpus} --memory-mib {memory} --port {port}"
    program = f"/opt/{label}/service.py"
    match neighbour["kind"]:
        case "unit":
            _unit(made, f"{label}.service", program, options)
        case "program":
            made.files[program] = File(SERVICE.read_text(), 0o755)
            made.files[f"/etc/supervisor/conf.d/{label}.conf"] = File(
                f"[program:{label}]\ncommand={program} {options}\nautostart=true\nautorestart=true\nstartsecs=1\nredirect_stderr=true\n"
            )
        case "container":
            if replaced and (CHECKOUT / "lab/engine/sglang/launch_server.py").exists():
                made.spec["commands"].append(_engine_by_hand(name, host, port or 30000))
            else:
                made.spec["commands"].append(_container(name, options, port))
        case "compose":
            made.files[f"/opt/{label}/compose.yml"] = File(_compose(options, port))
            made.spec["commands"].append(["docker", "compose", "-p", label, "-f", f"/opt/{label}/compose.yml", "up", "-d"])


def _unit(made: World, unit: str, program: str, options: str, user: str = "root") -> None:
    made.files[program] = File(SERVICE.read_text(), 0o755)
    made.files[f"/etc/systemd/system/{unit}"] = File(
        f"[Unit]\nDescription={unit.removesuffix('.service')}, kept by a colleague\nAfter=network.target\n\n"
        f"[Service]\nUser={user}\nExecStart={program} {options}\nRestart=on-failure\n\n[Install]\nWantedBy=multi-user.target\n"
    )
    made.files[f"/etc/systemd/system/multi-user.target.wants/{unit}"] = File(link=f"/etc/systemd/system/{unit}")


def _container(name: str, options: str, port: int) -> list[str]:
    publish = ["-p", f"{port}:{port}"] if port else []
    program = ["python3", "/opt/notebook/notebook.py", *options.split()]
    return ["docker", "run", "-d", "--name", name, "--restart", "unless-stopped", "--gpus", "all", *publish, NOTEBOOK, *program]


def _compose(options: str, port: int) -> str:
    service: dict[str, Any] = {
        "image": NOTEBOOK,
        "restart": "unless-stopped",
        "command": ["python3", "/opt/notebook/notebook.py", *options.split()],
        "deploy": {"resources": {"reservations": {"devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}}},
    }
    if port:
        service["ports"] = [f"{port}:{port}"]
    return json.dumps({"services": {"app": service}}, indent=1) + "\n"


def _engine_by_hand(name: str, host: Yaml, port: int) -> list[str]:
    """Return the command with which somebody started the engine by hand before Lodger came: values as in the first deployment's notes."""
    engine = {
        "model-path": "/models/Qwen3.8-27B-FP8", "speculative-algorithm": "DFLASH",
        "speculative-draft-model-path": "/models/Qwen3.8-27B-DFlash2", "speculative-num-draft-tokens": "8", "tp-size": "4",
        "context-length": "131072", "mem-fraction-static": "0.80", "chunked-prefill-size": "2048", "mamba-full-memory-ratio": "0.75",
        "reasoning-parser": "qwen3", "tool-call-parser": "qwen3_coder", "served-model-name": "qwen3.8-27b", "host": "0.0.0.0", "port": str(port),
    }  # fmt: skip
    return ["docker", "run", "-d", "--name", name, "--gpus", "all", "--cap-add", "SYS_NICE", "--restart", "unless-stopped", "--ipc", "host",
            "--shm-size", "32g", "-p", f"{port}:{port}", "-v", f"{host['models_dir']}:/models:ro", "--entrypoint", "python3", ENGINE,
            "-m", "sglang.launch_server", *(word for option, value in engine.items() for word in (f"--{option}", value))]  # fmt: skip


def _model(name: str, model: Yaml, folder: Path) -> dict[str, Any]:
    """Describe a model folder: its config, an index, and weights as sparse files that bring the total to the declared size."""
    config, tensors = folder / "config.json", folder / "tensors.json"
    listed: dict[str, Any] = json.loads(tensors.read_text()) if tensors.exists() else {}
    total, count = int(listed.get("total_size", 4_000_000_000)), int(listed.get("shards", 1))
    shards = [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
    names = [tensor["name"] for tensor in listed.get("tensors", [])] or ["model.embed_tokens.weight"]
    index = {"metadata": {"total_size": total}, "weight_map": {name: shards[n % count] for n, name in enumerate(names)}}
    texts = {
        "config.json": config.read_text() if config.exists() else json.dumps({"_name_or_path": name}) + "\n",
        "model.safetensors.index.json": json.dumps(index, indent=1) + "\n",
    }
    rest = int(model["size_bytes"]) - sum(len(text.encode()) for text in texts.values()) if "size_bytes" in model else total
    weights = dict.fromkeys(shards, rest // count)
    weights[shards[-1]] += rest % count
    return {"directory": model["directory"], "files": texts, "weights": weights}

"""What a twin is told about itself: /etc/twin.json and the files of its neighbours, all derived from its host file. Pure."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.driver.inside.kernel import cuda
from lab.image import REGISTRY
from lab.notebook import NOTEBOOK, SERVICE, gpu_compose
from lab.run import CHECKOUT
from lab.twin import File
from lodger.inventory import Fleet, Host, Model, Neighbour

ENGINE = f"{REGISTRY}/lmsysorg/sglang:v0.5.19-cu129"
ENGINE_CUDA = (12, 9)
ENGINE_CODE = CHECKOUT / "lab" / "engine" / "sglang" / "launch_server.py"
# A replaced neighbour fills its GPUs as a serving engine does.
FILLED = 0.85


@dataclass
class World:
    """What a twin gets before its first boot: what world.py inside it reads, and files."""

    spec: dict[str, Any]
    files: dict[str, File] = field(default_factory=dict)

    def run(self, *argv: str) -> None:
        """Have a command run once, at the first boot, when Docker is there."""
        self.spec["commands"].append(list(argv))

    def unit(self, name: str, options: str, user: str = "root") -> None:
        """Add a systemd service, enabled, that runs the service program."""
        program = self.program(name.removesuffix(".service"))
        self.files[f"/etc/systemd/system/{name}"] = File(
            f"[Unit]\nDescription={name.removesuffix('.service')}, kept by a colleague\nAfter=network.target\n\n"
            f"[Service]\nUser={user}\nExecStart={program} {options}\nRestart=on-failure\n\n"
            "[Install]\nWantedBy=multi-user.target\n"
        )
        self.enable(name, "multi-user.target")

    def enable(self, unit: str, target: str) -> None:
        """Have a unit start with a target."""
        self.files[f"/etc/systemd/system/{target}.wants/{unit}"] = File(link=f"/etc/systemd/system/{unit}")

    def program(self, name: str) -> str:
        """Add the service program under a name of its own and return its path."""
        path = f"/opt/{name}/service.py"
        self.files[path] = File(SERVICE, 0o755)
        return path


def world(fleet: Fleet, host: Host, machine_id: str, driver: str) -> World:
    """Derive the surroundings of a twin that starts with a driver from its host file and the fleet."""
    made = World(
        {
            "machine_id": machine_id,
            "gpus": host.gpus.model_dump(),
            "models_dir": str(host.models_dir),
            "models": [model_files(model, fleet.folder / "models" / model.name) for model in fleet.models.values()],
            "commands": [],
            "awaited": [],  # containers, and the ports at which they say that they are well
            "locks": 0,  # how many GPUs the supervised programs have memory of
        }
    )
    _strangers(made)
    for neighbour in host.neighbours.values():
        _neighbour(made, neighbour, host, driver)
    return made


def _strangers(made: World) -> None:
    """Add what no inventory names, to see that it is left alone."""
    notebook = ["python3", "/opt/notebook/service.py", "--name", "notebook", "--port", "8888"]
    options = ["--restart", "always", "-p", "8888:8888", "-v", "colleague-work:/work"]
    made.run("docker", "run", "-d", "--name", "colleague-notebook", *options, NOTEBOOK, *notebook)
    made.run("docker", "run", "--name", "colleague-migration", NOTEBOOK, "true")
    made.unit("colleague-metrics.service", "--name metrics --port 9100", user="colleague")
    backup = "/etc/systemd/system/colleague-backup"
    made.files[f"{backup}.service"] = File("[Unit]\nDescription=Backup\n\n[Service]\nType=oneshot\nExecStart=/bin/true\n")
    made.files[f"{backup}.timer"] = File("[Timer]\nOnCalendar=*-*-* 03:30:00\n\n[Install]\nWantedBy=timers.target\n")
    made.enable("colleague-backup.timer", "timers.target")


def _neighbour(made: World, neighbour: Neighbour, host: Host, driver: str) -> None:
    """Add a neighbour. One that is to be replaced fills its GPUs and has the first worker's port."""
    replaced = neighbour.policy == "replace"
    port = next((worker.port for worker in host.workers.values()), 0) if replaced else 0
    gpus = ",".join(map(str, range(host.gpus.count) if neighbour.gpus is None else neighbour.gpus))
    memory = neighbour.gpu_memory_mib or (round(host.gpus.memory_mib * FILLED) if replaced else 0)
    label = neighbour.name.removesuffix(".service")
    options = f"--name {label} --gpus {gpus} --memory-mib {memory} --port {port}"
    in_container = ["python3", "/opt/notebook/service.py", *options.split()]
    match neighbour.kind:
        case "unit":
            made.unit(f"{label}.service", options)
        case "program":
            made.spec["locks"] += len(gpus.split(",")) if memory else 0
            made.files[f"/etc/supervisor/conf.d/{label}.conf"] = File(
                f"[program:{label}]\ncommand={made.program(label)} {options}\nstartsecs=1\nredirect_stderr=true\n"
            )
        case "container":
            publish = ["-p", f"{port}:{port}"] if port else []
            start = ["docker", "run", "-d", "--name", label, "--restart", "unless-stopped", "--gpus", "all", *publish]
            # With a driver too old for the engine's image, what ran before was an older service.
            if replaced and ENGINE_CODE.exists() and runs_engine(driver):
                made.run(*start, *_engine_by_hand(host, port))
                made.spec["awaited"].append([label, port])
            else:
                made.run(*start, NOTEBOOK, *in_container)
        case "compose":
            path = f"/opt/{label}/compose.yml"
            made.files[path] = File(gpu_compose(NOTEBOOK, in_container, [f"{port}:{port}"] if port else []))
            made.run("docker", "compose", "-p", label, "-f", path, "up", "-d")


def runs_engine(driver: str) -> bool:
    """Whether the engine's image starts with a driver."""
    return tuple(map(int, cuda(driver).split("."))) >= ENGINE_CUDA


def _engine_by_hand(host: Host, port: int) -> list[str]:
    """Return the rest of the `docker run` with which somebody started the engine by hand, before Lodger came."""
    engine = """
        --model-path /models/Qwen3.8-27B-FP8 --served-model-name qwen3.8-27b --tp-size 4 --context-length 131072
        --speculative-algorithm DFLASH --speculative-draft-model-path /models/Qwen3.8-27B-DFlash2
        --speculative-num-draft-tokens 8 --mem-fraction-static 0.80 --chunked-prefill-size 2048
        --mamba-full-memory-ratio 0.75 --reasoning-parser qwen3 --tool-call-parser qwen3_coder --host 0.0.0.0
    """
    docker = f"--cap-add SYS_NICE --ipc host --shm-size 32g -v {host.models_dir}:/models:ro --entrypoint python3"
    return [*docker.split(), ENGINE, "-m", "sglang.launch_server", *engine.split(), "--port", str(port)]


def model_files(model: Model, folder: Path) -> dict[str, Any]:
    """Describe a model folder: its config, an index, and weights as sparse files that bring the total to the declared size."""
    config, tensors = folder / "config.json", folder / "tensors.json"
    listed: dict[str, Any] = json.loads(tensors.read_text()) if tensors.exists() else {}
    total, count = int(listed.get("total_size", 4_000_000_000)), int(listed.get("shards", 1))
    shards = [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
    names = [tensor["name"] for tensor in listed.get("tensors", [])] or ["model.embed_tokens.weight"]
    index = {"metadata": {"total_size": total}, "weight_map": {name: shards[n % count] for n, name in enumerate(names)}}
    texts = {
        "config.json": config.read_text() if config.exists() else json.dumps({"_name_or_path": model.source}) + "\n",
        "model.safetensors.index.json": json.dumps(index, indent=1) + "\n",
    }
    rest = model.size_bytes - sum(len(text.encode()) for text in texts.values()) if model.size_bytes else total
    weights = dict.fromkeys(shards, rest // count)
    weights[shards[-1]] += rest % count
    return {"directory": str(model.directory), "files": texts, "weights": weights}

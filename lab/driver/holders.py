"""Other people's processes on a twin's GPUs, one for each way in which a process can belong to somebody. None runs by default.

Each function starts one that holds GPUs open with some memory of each, waits until it does, and returns its pid.
"""

from lab.run import wait_until
from lab.twin import Twin
from lab.world import NOTEBOOK, SERVICE, gpu_compose

USER = "colleague"
_OPEN = "find /proc/$1/fd -lname '/dev/nvidia[0-9]*' 2>/dev/null | grep -q ."


def user_unit(twin: Twin, name: str = "training", *, gpus: str = "0", memory_mib: int = 256) -> int:
    """Start a service of a user's own systemd, which runs on without a login (linger)."""
    unit = (
        f"[Service]\nExecStart={_program(twin, name)} {_options(name, gpus, memory_mib)}\n[Install]\nWantedBy=default.target\n"
    )
    home = f"/home/{USER}/.config/systemd/user"
    twin.write(f"{home}/{name}.service", unit)
    twin.exec(f"chown -R {USER}: /home/{USER}/.config && loginctl enable-linger {USER}")
    uid = twin.exec(["id", "-u", USER]).stdout.strip()
    ready = ["test", "-S", f"/run/user/{uid}/systemd/private"]
    wait_until(lambda: twin.exec(ready, check=False).returncode == 0, f"the systemd of {USER} runs")
    manager = ["runuser", "-u", USER, "--", "env", f"XDG_RUNTIME_DIR=/run/user/{uid}", "systemctl", "--user"]
    twin.exec([*manager, "daemon-reload"])
    twin.exec([*manager, "-q", "enable", "--now", name])
    return _started(twin, name)


def grouped_program(
    twin: Twin, name: str = "upscaler", group: str = "images", *, gpus: str = "0", memory_mib: int = 256
) -> int:
    """Start a program of supervisord that belongs to a group: supervisorctl calls it GROUP:NAME."""
    command = f"{_program(twin, name)} {_options(name, gpus, memory_mib)}"
    conf = f"[group:{group}]\nprograms={name}\n\n[program:{name}]\ncommand={command}\nstartsecs=1\nredirect_stderr=true\n"
    twin.write(f"/etc/supervisor/conf.d/{group}.conf", conf)
    twin.exec("supervisorctl update")
    return _started(twin, name)


def compose_project(twin: Twin, name: str = "captioning", *, gpus: str = "0", memory_mib: int = 256) -> int:
    """Start a compose project with one service `app` on the GPUs."""
    command = ["python3", "/opt/notebook/service.py", *_options(name, gpus, memory_mib).split()]
    path = f"/opt/{name}/compose.yml"
    twin.write(path, gpu_compose(NOTEBOOK, command, []))
    twin.exec(["docker", "compose", "-p", name, "-f", path, "up", "-d"])
    return _started(twin, name)


def container(twin: Twin, name: str = "experiment", *, gpus: str = "0", memory_mib: int = 256) -> int:
    """Start a container with `docker run`."""
    command = ["python3", "/opt/notebook/service.py", *_options(name, gpus, memory_mib).split()]
    twin.exec(["docker", "run", "-d", "--name", name, "--gpus", "all", NOTEBOOK, *command])
    return _started(twin, name)


def start_again(twin: Twin, name: str = "experiment") -> int:
    """Start a container that `container` made, and that is stopped."""
    twin.exec(["docker", "start", name])
    return _started(twin, name)


def process(twin: Twin, name: str = "train", *, gpus: str = "0", memory_mib: int = 256) -> int:
    """Start a bare process of a user, left behind by a login that is over."""
    command = f"{_program(twin, name)} {_options(name, gpus, memory_mib)}"
    twin.exec(["runuser", "-l", USER, "-c", f"setsid nohup {command} >/dev/null 2>&1 </dev/null &"])
    return _started(twin, name)


def _program(twin: Twin, name: str) -> str:
    path = f"/opt/{name}/service.py"
    twin.write(path, SERVICE, "755")
    return path


def _options(name: str, gpus: str, memory_mib: int) -> str:
    return f"--name {name} --gpus {gpus} --memory-mib {memory_mib}"


def _started(twin: Twin, name: str) -> int:
    """Return the pid of the process of that name, once it has a GPU open."""
    found: list[str] = []

    def ask() -> bool:
        for pid in twin.exec(["pgrep", "-f", f"service.py --name {name} "], check=False).stdout.split():
            if twin.exec(["sh", "-c", _OPEN, "sh", pid], check=False).returncode == 0:
                found.append(pid)
        return bool(found)

    wait_until(ask, f"{name} has a GPU open")
    return int(found[0])

"""What an inventory may say: the classes are the schema, each field's description says what it means and in which unit.

All of it is frozen. A value is only ever what was written: no text becomes a number, no unknown key is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from lodger.errors import InventoryError
from lodger.inventory.strict_yaml import Document
from lodger.inventory.values import (
    NAMED,
    AbsolutePath,
    Address,
    Digest,
    GpuIndex,
    Hours,
    Interface,
    Label,
    Listen,
    MachineId,
    Name,
    Named,
    NeighbourName,
    Port,
    RelativePath,
    Repository,
    Seconds,
    StrictModel,
    Tag,
    Text,
    Url,
    User,
    Value,
    Version,
    VirtualAddress,
)

# ---------------------------------------------------------------- fleet.yml


class Image(Named):
    """A container image, and the exact bytes of it that were chosen."""

    repository: Repository
    """Registry and path, as a host pulls it: docker.io/lmsysorg/sglang."""
    tag: Tag
    """The tag that `pin` resolves; hosts never see it."""
    digest: Digest | None = None
    """The manifest's digest. Written by `./ops pin`; without it nothing is deployed."""
    cuda: Version | None = None
    """CUDA toolkit inside the image: the driver must be new enough for it. None for an image that uses no GPU."""

    @property
    def reference(self) -> str:
        """``repository@digest``; raises InventoryError while the image is not pinned."""
        if self.digest is None:
            raise InventoryError(
                f"image {self.name} has no digest: {self.repository}:{self.tag} may be other bytes tomorrow",
                hint="run `./ops pin` to read it from the registry",
            )
        return f"{self.repository}@{self.digest}"


class Model(Named):
    """Weights in one folder below each host's ``models_dir``."""

    directory: RelativePath
    """Folder below `models_dir`."""
    source: Text
    """Repository on the model hub, organisation/name."""
    served_name: Value | None = None
    """The name that clients ask for. A pool's model needs one, a draft none."""
    revision: Value | None = None
    """Commit of `source`: a branch name moves."""
    size_bytes: Annotated[int, Field(ge=1)] | None = None
    """Size of the whole repository in bytes."""


class Weights(StrictModel):
    """Where weights are fetched from."""

    endpoints: dict[Literal["modelscope", "huggingface"], Url]
    """Base URL of each hub, in order of preference."""


Algorithm = Literal["DFLASH", "DSPARK", "EAGLE", "EAGLE3", "NEXTN", "NGRAM", "STANDALONE"]
NO_DRAFT_MODEL = ("NEXTN", "NGRAM")  # the head is inside the target, or there is none


class Draft(StrictModel):
    """Speculative decoding: what proposes tokens for the model to check."""

    algorithm: Algorithm
    """SGLang's name of the method."""
    tokens: Annotated[int, Field(ge=1, le=64)]
    """Draft tokens a step. For DFLASH the draft's own block_size."""
    model: Label | None = None
    """The draft's weights. NEXTN (a head inside the target) and NGRAM have none."""
    quantization: Value | None = None
    """The draft's own quantization; unset, SGLang assumes the target's. `unquant` for a BF16 draft."""
    min_accept_length: Annotated[float, Field(ge=1, le=64)] = 1.0
    """Smoke fails below this many accepted tokens a step. A draft that never matches reads about 1.0."""


class EngineSettings(StrictModel):
    """How one SGLang server runs. A pool sets these; a worker's `engine:` may replace single ones."""

    context_length: Annotated[int, Field(ge=1)]
    """Longest prompt and answer together, in tokens."""
    mem_fraction_static: Annotated[float, Field(gt=0, lt=1)]
    """Share of each GPU's memory for weights and pools; the rest is for activations."""
    chunked_prefill_size: Annotated[int, Field(ge=1)]
    """Prompt tokens computed in one step."""
    max_running_requests: Annotated[int, Field(ge=1)]
    """Requests that really run at once: what the state pool admits, not what one would like."""
    max_queued_requests: Annotated[int, Field(ge=1)] | None = None
    """Requests that wait; one more is refused at once."""
    mamba_full_memory_ratio: Annotated[float, Field(gt=0)] | None = None
    """Memory of the linear-attention states divided by memory of the KV cache (hybrid models only)."""
    mamba_radix_cache_strategy: Literal["no_buffer", "extra_buffer", "extra_buffer_lazy"] | None = None
    """How prefix caching keeps states; sets the slots that one running request takes (3, 5, 4)."""
    mamba_ssm_dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Type of the states; None is what the model's own configuration says."""
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8_e4m3", "fp8_e5m2"] | None = None
    """Type of the KV cache; None is the model's own."""
    reasoning_parser: Value | None = None
    """Takes the thinking out of `content`. None leaves it there."""
    tool_call_parser: Value | None = None
    """Turns the model's tool call text into `tool_calls`. None leaves it in `content`."""
    disable_custom_all_reduce: bool = False
    """True for GPUs without peer-to-peer access."""
    draft: Draft | None = None
    """Speculative decoding; None is none."""
    extra_args: tuple[Text, ...] = ()
    """Further options of the engine, appended as they are."""
    shm_size_gib: Annotated[int, Field(ge=1, le=1024)] = 32
    """Shared memory of the container in GiB, through which the ranks of tensor parallelism talk."""
    start_timeout_s: Seconds = 1200
    """Slowest start that is still believed in, from container to healthy."""
    longest_stream_s: Seconds = 900
    """Longest answer that a client may wait for; the router cuts a request off here."""
    stop_timeout_s: Seconds = 930
    """How long a stop waits for running answers before it kills. More than `longest_stream_s`."""
    restart_burst: Annotated[int, Field(ge=1, le=20)] = 3
    """Starts within one interval after which a crash loop ends as failed."""
    restart_delay_s: Seconds = 15
    """Pause before a restart."""


class Routing(StrictModel):
    """How a pool's routers choose a worker and notice a dead one. Times and figures: sglang-router 0.2.4, measured."""

    policy: Literal["cache_aware", "round_robin", "power_of_two", "random"] = "cache_aware"
    """`cache_aware` sends a prompt where its longest known prefix went."""
    cache_threshold: Annotated[float, Field(ge=0, le=1)] = 0.3
    """Share of a prompt that must match a known prefix for the prompt to follow it."""
    balance_abs_threshold: Annotated[int, Field(ge=1)] = 4
    """Difference in requests between the busiest and the idlest worker above which load decides, not the prefix."""
    balance_rel_threshold: Annotated[float, Field(ge=1)] = 1.2
    """And their quotient, which must be exceeded as well."""
    health_check_interval_s: Seconds = 2
    """Pause between two looks at a worker."""
    health_check_timeout_s: Seconds = 10
    """How long a look waits. An engine answers between two chunks of a prompt, the last of 131,072 tokens takes 7 s."""
    health_failure_threshold: Annotated[int, Field(ge=1)] = 2
    """Failed looks in a row after which a worker gets no more requests."""
    attempts: Annotated[int, Field(ge=1, le=10)] = 2
    """Times that one request is sent in all, the first included (the router's `max-retries` counts like that too)."""
    retry_after_s: Seconds = 6
    """Pause before it is sent again, a fifth more or less: longer than a dead worker is believed in, or it goes there again."""
    worker_join_timeout_s: Seconds = 86400
    """How long a worker that is not up yet is waited for before the router forgets it."""


class Vrrp(StrictModel):
    """The address that the hosts of a pool's routers hand to each other with keepalived."""

    address: VirtualAddress
    """What clients use, with the length of its network: 10.0.0.9/24."""
    id: Annotated[int, Field(ge=1, le=255)]
    """Number of the VRRP group; no other group on that network may have it."""


class Pool(EngineSettings, Named):
    """Workers behind one address: the same image, model and settings by construction."""

    image: Label
    """The engine's image, by its name under `images`."""
    model: Label
    """The model served, by its name under `models`."""
    api_key_file: Value | None = None
    """File with the key that workers and routers ask for, on the operator's machine, beside this file or an absolute path."""
    router_image: Label | None = None
    """The router's image; a pool without router needs none."""
    routing: Routing = Routing()
    """Shared by every router of the pool."""
    vrrp: Vrrp | None = None
    """The routers' common address; None where clients know each router's own."""


class Site(StrictModel):
    """What all hosts share: the content of ``fleet.yml``."""

    site: Label
    """Name of the site, for titles."""
    images: Annotated[dict[Label, Image], NAMED]
    """Container images."""
    models: Annotated[dict[Label, Model], NAMED]
    """Weights, targets and drafts alike."""
    weights: Weights
    """Where weights come from."""
    pools: Annotated[dict[Label, Pool], NAMED]
    """What is served."""


# ---------------------------------------------------------------- <host>.yml


class Gpus(StrictModel):
    """The GPUs of one host, all alike."""

    model: Text
    """Name as nvidia-smi prints it."""
    count: Annotated[int, Field(ge=1, le=64)]
    """How many; they are numbered from 0."""
    memory_mib: Annotated[int, Field(ge=1)]
    """Memory of each in MiB."""


class SshSettings(StrictModel):
    """What differs from the operator's own OpenSSH configuration; anything unset is resolved as OpenSSH would."""

    user: User | None = None
    """Login name."""
    port: Port | None = None
    """Port of sshd."""
    identity_file: Text | None = None
    """Private key on the operator's machine."""
    known_hosts_file: Text | None = None
    """Host keys on the operator's machine."""


class Warn(StrictModel):
    """How the people behind a neighbour are told that it will be paused, and that it is back."""

    command: Text
    """Run by sh on the host as root, with WHEN (before or after) and MINUTES set."""
    minutes: Annotated[int, Field(ge=0, le=240)] = 5
    """How long before the pause, in minutes."""


class Neighbour(Named):
    """Somebody else's service that Lodger may stop, through its owner only, and must put back."""

    kind: Literal["unit", "user-unit", "program", "container", "compose"]
    """Its owner: systemd, a user's systemd (the name is `user:unit`), supervisord, Docker, Docker Compose."""
    policy: Literal["pause", "replace"]
    """`pause`: stopped while GPUs are needed, then started. `replace`: stopped and disabled until rolled back."""
    gpu_memory_mib: Annotated[int, Field(ge=0)] = 0
    """GPU memory in MiB that it holds on each of `gpus` beside our workers."""
    gpus: tuple[GpuIndex, ...] | None = None
    """The GPUs it uses; None is all of the host's."""
    warn: Warn | None = None
    """Whom to tell before it is paused, and how."""
    hours: Hours | None = None
    """When it may be paused, `22:00-06:00` by the host's clock; None is at any time."""


class Worker(Named):
    """One SGLang server on a host."""

    pool: Label
    """The pool it serves in."""
    gpus: tuple[GpuIndex, ...]
    """Its GPUs; their number is the tensor parallelism."""
    port: Port
    """Port on the host."""
    listen: Listen = "0.0.0.0"  # noqa: S104  # routers on other hosts must reach it
    """Address of the host on which the port is published."""
    engine: dict[str, Any] = Field(default_factory=dict)
    """Settings of the pool that are different for this worker; see Engine."""

    @property
    def tp(self) -> int:
        """Tensor parallelism: one rank a GPU."""
        return len(self.gpus)


class Router(StrictModel):
    """The process that gives a pool one address."""

    pool: Label
    """The pool behind it."""
    port: Port
    """Port on the host that clients use."""
    prometheus_port: Port
    """Port of its metrics."""
    listen: Listen = "0.0.0.0"  # noqa: S104  # clients are on other machines
    """Address on which clients reach it."""
    prometheus_listen: Listen = "127.0.0.1"
    """Address of its metrics, which name every worker."""
    standby: bool = False
    """Whether clients come here only when the pool's other router is gone; it knows no prefix then."""
    interface: Interface | None = None
    """Network interface that carries the pool's virtual address while it is here."""
    start_timeout_s: Seconds = 60
    """Slowest start: 12 to 16 s were seen."""
    restart_burst: Annotated[int, Field(ge=1, le=20)] = 5
    """Starts within one interval after which a crash loop ends as failed."""
    restart_delay_s: Seconds = 5
    """Pause before a restart."""


class Host(Named):
    """A machine, and what Lodger may do there."""

    address: Address
    """What one would give to ssh."""
    service_address: Address | None = None
    """What other hosts reach its workers at; None is `address`."""
    ssh: SshSettings = SshSettings()
    """Connection settings."""
    machine_id: MachineId | None = None
    """/etc/machine-id: whether the machine at the address is the one meant. None until the first contact."""
    gpus: Gpus
    """Its GPUs."""
    driver: Version
    """The NVIDIA driver that it should run."""
    models_dir: AbsolutePath
    """Folder of the weights."""
    neighbours: Annotated[dict[NeighbourName, Neighbour], NAMED] = Field(default_factory=dict)
    """Services of other people that may be touched. Whatever is not named here is not."""
    workers: Annotated[dict[Name, Worker], NAMED] = Field(default_factory=dict)
    """Our servers."""
    router: Router | None = None
    """Our router, if this host has one."""

    def reserved_mib(self, gpu: int) -> int:
        """Memory of one GPU in MiB that neighbours keep while workers serve."""
        return sum(n.gpu_memory_mib for n in self.neighbours.values() if n.gpus is None or gpu in n.gpus)


class Fleet(Site):
    """Everything: the site and its hosts."""

    hosts: Annotated[dict[Name, Host], NAMED]
    """All hosts by name, the file's name without .yml."""
    folder: Path
    """The folder it was read from; `models/<name>/` in it holds the models' own files."""
    sources: Mapping[str, Document] = Field(default_factory=dict, repr=False, exclude=True)
    """The files as read, by their name without .yml."""

    def settings(self, worker: Worker) -> EngineSettings:
        """Return a worker's settings: its pool's, with its own in place."""
        return EngineSettings.model_validate(merged(self.pools[worker.pool], worker.engine))

    def models_of(self, host: Host) -> tuple[str, ...]:
        """Return the models that a host's workers load, targets and drafts, each once."""
        engines = [(self.pools[worker.pool].model, self.settings(worker).draft) for worker in host.workers.values()]
        return tuple(
            dict.fromkeys(name for model, draft in engines for name in (model, draft.model if draft else None) if name)
        )

    def pool_workers(self, pool: str) -> tuple[tuple[Host, Worker], ...]:
        """Return every worker of a pool with its host, ordered by their names."""
        return tuple(
            (host, worker)
            for _, host in sorted(self.hosts.items())
            for _, worker in sorted(host.workers.items())
            if worker.pool == pool
        )

    def where(self, *loc: str | int, host: str | None = None) -> str:
        """Return ``file:line`` of a value: of a host's file, or of fleet.yml when ``host`` is None."""
        stem = host or "fleet"
        return f"{self.folder / stem}.yml:{self.sources.get(stem, Document()).line(loc)}"


def merged(pool: Pool, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pool's engine settings with ``own`` in place, not yet validated; a mapping replaces key by key."""
    merged: dict[str, Any] = {name: getattr(pool, name) for name in EngineSettings.model_fields}
    for key, value in own.items():
        if isinstance(value, dict) and isinstance(before := merged.get(key), BaseModel):
            merged[key] = before.model_dump() | value
        else:
            merged[key] = value
    return merged

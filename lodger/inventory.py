"""The fleet as its owner wrote it down: ``hosts/fleet.yml`` and one ``hosts/<name>.yml`` for each machine.

The classes are the schema: each field's description says what it means and in which unit. ``load`` reads a folder, checks
every file and what the files say about each other, and reports all mistakes at once, each with file, line and path.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import annotated_types
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, PrivateAttr, ValidationError
from pydantic_core import CoreSchema, core_schema

from lodger import yamldoc
from lodger.errors import InventoryError
from lodger.yamldoc import Document, Loc

# ---------------------------------------------------------------- what a value may be


@dataclass(frozen=True)
class _Checked:
    """Annotation of a text: what is accepted, in words for the person who mistyped it, and the test."""

    accepts: str
    test: Callable[[str], bool]

    def __get_pydantic_core_schema__(self, source: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: str) -> str:
        if not self.test(value):
            raise ValueError
        return value


def _like(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern)
    return lambda value: compiled.fullmatch(value) is not None


def _absolute(value: str) -> bool:
    return value.startswith("/") and value.isprintable() and not {"..", "."} & set(value.split("/"))


def _beneath(value: str) -> bool:
    return value.isprintable() and all(part not in ("", ".", "..") for part in value.split("/")) and value[:1] != "-"


Text = Annotated[str, _Checked("text on one line, printable characters only", lambda v: v != "" and v.isprintable())]
Value = Annotated[
    str, _Checked("text on one line, not beginning with -", lambda v: v != "" and v.isprintable() and v[0] != "-")
]
"""Text that follows an option on a command line, where a dash would make it one."""
Name = Annotated[str, _Checked("lower-case letters, digits and -, at most 40", _like(r"[a-z0-9][a-z0-9-]{0,39}"))]
Label = Annotated[str, _Checked("lower-case letters, digits, . and -, at most 60", _like(r"[a-z0-9][a-z0-9.-]{0,59}"))]
Address = Annotated[str, _Checked("a host name or an IP address", _like(r"[A-Za-z0-9:][A-Za-z0-9._:-]{0,252}"))]
Listen = Annotated[str, _Checked("an IPv4 address of the host, or 0.0.0.0", _like(r"(\d{1,3}\.){3}\d{1,3}"))]
AbsolutePath = Annotated[str, _Checked("an absolute path without . or .. in it", _absolute)]
RelativePath = Annotated[str, _Checked("a path below models_dir, without . or .. in it", _beneath)]
Digest = Annotated[str, _Checked("sha256: and 64 lower-case hex digits", _like(r"sha256:[0-9a-f]{64}"))]
Repository = Annotated[
    str,
    _Checked(
        "registry/path/name without tag or digest",
        _like(r"[a-zA-Z0-9][a-zA-Z0-9.-]*(:\d+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+"),
    ),
]
Tag = Annotated[str, _Checked("an image tag such as v0.5.19-cu129", _like(r"\w[\w.-]{0,127}"))]
Version = Annotated[str, _Checked('a version in quotes, such as "12.9"', _like(r"\d+(\.\d+){1,3}"))]
MachineId = Annotated[str, _Checked("the 32 hex digits of /etc/machine-id, in quotes", _like(r"[0-9a-f]{32}"))]
Url = Annotated[str, _Checked("an http or https URL", _like(r"https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~/-]*)?"))]
User = Annotated[str, _Checked("a login name", _like(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}"))]
NeighbourName = Annotated[
    str, _Checked("the service's own name, not beginning with lodger-", _like(r"(?!lodger-)[A-Za-z0-9][A-Za-z0-9:_.@\\-]*"))
]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[int, Field(ge=1, le=604800)]
GpuIndex = Annotated[int, Field(ge=0, le=63)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)


class _Named(_Model):
    _name: str = PrivateAttr("")

    @property
    def name(self) -> str:
        """The key under which the inventory lists it."""
        return self._name


_N = TypeVar("_N", bound=_Named)


def _give_names(items: dict[str, _N]) -> dict[str, _N]:
    for key, item in items.items():
        item._name = key  # the mapping's key is the item's name; nothing else sets it
    return items


_NAMED = AfterValidator(_give_names)


# ---------------------------------------------------------------- fleet.yml


class Image(_Named):
    """A container image, and the exact bytes of it that were chosen."""

    repository: Repository
    """Registry and path, as a host pulls it: docker.io/lmsysorg/sglang."""
    tag: Tag
    """The tag that `pin` resolves; hosts never see it."""
    digest: Digest | None = None
    """The manifest's digest. Written by `invoke pin`; without it nothing is deployed."""
    cuda: Version | None = None
    """CUDA toolkit inside the image: the driver must be new enough for it. None for an image that uses no GPU."""

    @property
    def reference(self) -> str:
        """``repository@digest``; raises InventoryError while the image is not pinned."""
        if self.digest is None:
            raise InventoryError(
                f"image {self.name} has no digest: {self.repository}:{self.tag} may be other bytes tomorrow",
                hint="run `invoke pin` to read it from the registry",
            )
        return f"{self.repository}@{self.digest}"


class Model(_Named):
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


class Weights(_Model):
    """Where weights are fetched from."""

    endpoints: dict[Literal["modelscope", "huggingface"], Url]
    """Base URL of each hub, in order of preference."""


Algorithm = Literal["DFLASH", "DSPARK", "EAGLE", "EAGLE3", "NEXTN", "NGRAM", "STANDALONE"]
_NO_DRAFT_MODEL = ("NEXTN", "NGRAM")  # the head is inside the target, or there is none


class Draft(_Model):
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


class Engine(_Model):
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


class Routing(_Model):
    """How a pool's routers choose a worker and notice a dead one. Times and figures: sglang-router 0.2.4, measured."""

    policy: Literal["cache_aware", "round_robin", "power_of_two", "random"] = "cache_aware"
    """`cache_aware` sends a prompt where its longest known prefix went."""
    cache_threshold: Annotated[float, Field(ge=0, le=1)] = 0.3
    """Share of a prompt that must match a known prefix for the prompt to follow it."""
    balance_abs_threshold: Annotated[int, Field(ge=1)] = 4
    """Difference in requests between the busiest and the idlest worker above which load decides, not the prefix."""
    balance_rel_threshold: Annotated[float, Field(ge=1)] = 1.2
    """And their quotient, which must be exceeded as well."""
    health_check_interval_s: Seconds = 5
    """Pause between two looks at a worker."""
    health_failure_threshold: Annotated[int, Field(ge=1)] = 2
    """Failed looks in a row after which a worker gets no more requests."""
    attempts: Annotated[int, Field(ge=1, le=10)] = 2
    """Times that one request is sent in all, the first included (the router's `max-retries` counts like that too)."""
    worker_join_timeout_s: Seconds = 86400
    """How long a worker that is not up yet is waited for before the router forgets it."""


class Pool(Engine, _Named):
    """Workers behind one address: the same image, model and settings by construction."""

    image: Label
    """The engine's image, by its name under `images`."""
    model: Label
    """The model served, by its name under `models`."""
    router_image: Label | None = None
    """The router's image; a pool without router needs none."""
    routing: Routing = Routing()
    """Shared by every router of the pool."""


class Site(_Model):
    """What all hosts share: the content of ``fleet.yml``."""

    site: Label
    """Name of the site, for titles."""
    images: Annotated[dict[Label, Image], _NAMED]
    """Container images."""
    models: Annotated[dict[Label, Model], _NAMED]
    """Weights, targets and drafts alike."""
    weights: Weights
    """Where weights come from."""
    pools: Annotated[dict[Label, Pool], _NAMED]
    """What is served."""


# ---------------------------------------------------------------- <host>.yml


class Gpus(_Model):
    """The GPUs of one host, all alike."""

    model: Text
    """Name as nvidia-smi prints it."""
    count: Annotated[int, Field(ge=1, le=64)]
    """How many; they are numbered from 0."""
    memory_mib: Annotated[int, Field(ge=1)]
    """Memory of each in MiB."""


class Ssh(_Model):
    """What differs from the operator's own OpenSSH configuration; anything unset is resolved as OpenSSH would."""

    user: User | None = None
    """Login name."""
    port: Port | None = None
    """Port of sshd."""
    identity_file: Text | None = None
    """Private key on the operator's machine."""
    known_hosts_file: Text | None = None
    """Host keys on the operator's machine."""


class Neighbour(_Named):
    """Somebody else's service that Lodger may stop, through its owner only, and must put back."""

    kind: Literal["unit", "program", "container", "compose"]
    """Its owner: systemd, supervisord, Docker, Docker Compose."""
    policy: Literal["pause", "replace"]
    """`pause`: stopped while GPUs are needed, then started. `replace`: stopped and disabled until rolled back."""
    gpu_memory_mib: Annotated[int, Field(ge=0)] = 0
    """GPU memory in MiB that it holds on each of `gpus` beside our workers."""
    gpus: tuple[GpuIndex, ...] | None = None
    """The GPUs it uses; None is all of the host's."""


class Worker(_Named):
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


class Router(_Model):
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
    start_timeout_s: Seconds = 60
    """Slowest start: 12 to 16 s were seen."""
    restart_burst: Annotated[int, Field(ge=1, le=20)] = 5
    """Starts within one interval after which a crash loop ends as failed."""
    restart_delay_s: Seconds = 5
    """Pause before a restart."""


class Host(_Named):
    """A machine, and what Lodger may do there."""

    address: Address
    """What one would give to ssh."""
    service_address: Address | None = None
    """What other hosts reach its workers at; None is `address`."""
    ssh: Ssh = Ssh()
    """Connection settings."""
    machine_id: MachineId | None = None
    """/etc/machine-id: whether the machine at the address is the one meant. None until the first contact."""
    gpus: Gpus
    """Its GPUs."""
    driver: Version
    """The NVIDIA driver that it should run."""
    models_dir: AbsolutePath
    """Folder of the weights."""
    neighbours: Annotated[dict[NeighbourName, Neighbour], _NAMED] = Field(default_factory=dict)
    """Services of other people that may be touched. Whatever is not named here is not."""
    workers: Annotated[dict[Name, Worker], _NAMED] = Field(default_factory=dict)
    """Our servers."""
    router: Router | None = None
    """Our router, if this host has one."""

    def reserved_mib(self, gpu: int) -> int:
        """Memory of one GPU in MiB that neighbours keep while workers serve."""
        return sum(n.gpu_memory_mib for n in self.neighbours.values() if n.gpus is None or gpu in n.gpus)


class Fleet(Site):
    """Everything: the site and its hosts."""

    hosts: Annotated[dict[Name, Host], _NAMED]
    """All hosts by name, the file's name without .yml."""
    folder: Path
    """The folder it was read from; `models/<name>/` in it holds the models' own files."""
    sources: Mapping[str, Document] = Field(default_factory=dict, repr=False, exclude=True)
    """The files as read, by their name without .yml."""

    def settings(self, worker: Worker) -> Engine:
        """Return a worker's settings: its pool's, with its own in place."""
        return Engine.model_validate(_merged(self.pools[worker.pool], worker.engine))

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


def _merged(pool: Pool, own: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {name: getattr(pool, name) for name in Engine.model_fields}
    for key, value in own.items():
        if isinstance(value, dict) and isinstance(before := merged.get(key), BaseModel):
            merged[key] = before.model_dump() | value
        else:
            merged[key] = value
    return merged


# ---------------------------------------------------------------- reading


@dataclass(frozen=True, order=True)
class _Mistake:
    stem: str | None
    line: int
    loc: Loc
    text: str


def load(path: Path) -> Fleet:
    """Read the inventory in the folder ``path``.

    Raises InventoryError with every mistake of every file, one a line: file, line, path, what is wrong, what is accepted.
    """
    documents = _read_all(path)
    mistakes = [_Mistake(stem, p.line, p.loc, p.text) for stem, doc in documents.items() for p in doc.problems]
    site: Site | None = None
    hosts: dict[str, Host] = {}
    for stem, doc in documents.items():
        if any(problem.loc == () for problem in doc.problems):
            continue  # not read to its end: what seems missing may only be unread
        try:
            if stem == "fleet":
                site = Site.model_validate(doc.data)
            else:
                hosts[stem] = Host.model_validate(doc.data)
        except ValidationError as error:
            known = {problem.loc for problem in doc.problems}
            model = Site if stem == "fleet" else Host
            mistakes += [m for m in _explain(error, model, stem, doc) if m.loc not in known]
    _give_names(hosts)
    for stem, loc, text in _cross_checks(site, hosts):
        mistakes.append(_Mistake(stem, documents[stem].line(loc), loc, text))
    if site is not None:
        mistakes += _engine_mistakes(site, hosts, documents)
    if mistakes or site is None:
        raise _all_in_one(path, mistakes)
    return Fleet(**{name: getattr(site, name) for name in Site.model_fields}, hosts=hosts, folder=path, sources=documents)


def _read_all(path: Path) -> dict[str, Document]:
    """Read every inventory file of a folder, fleet.yml first."""
    hint = "name the folder with --hosts-dir DIR or LODGER_HOSTS=DIR"
    try:
        files = sorted(f for f in path.iterdir() if f.suffix in (".yml", ".yaml") and not f.name.startswith("."))
        contents = {file.name: file.read_bytes() for file in files}
    except OSError as error:
        raise InventoryError(f"cannot read the inventory in {path}", cause=error.strerror or str(error), hint=hint) from error
    if "fleet.yml" not in contents:
        raise InventoryError(f"there is no fleet.yml in {path}", hint=hint)
    if len(contents) == 1:
        raise InventoryError(f"there is no host file in {path}", hint="beside fleet.yml, write one <host>.yml for each machine")
    documents = {"fleet": yamldoc.read(contents.pop("fleet.yml"))}
    for name, content in contents.items():
        doc = documents[name.removesuffix(".yml")] = yamldoc.read(content)
        stem = name.removesuffix(".yml")
        if name.endswith(".yaml"):
            doc.problems.insert(0, yamldoc.Problem(1, (), "is not read under this name; rename it to end in .yml"))
        elif stem == "all" or not _like(r"[a-z0-9][a-z0-9-]{0,39}")(stem):
            accepts = "lower-case letters, digits and -, and not all, which means every host"
            doc.problems.insert(0, yamldoc.Problem(1, (), f"has a name that no host can have; accepted: {accepts}"))
    for doc in documents.values():
        if not doc.problems and not isinstance(doc.data, dict):
            kind = "is empty" if doc.data is None else "is not a mapping"
            doc.problems.append(yamldoc.Problem(1, (), f"{kind}; accepted: keys with values, `key: value`"))
    return documents


def _all_in_one(path: Path, mistakes: list[_Mistake]) -> InventoryError:
    def file(stem: str) -> Path:
        return path / (stem if stem.endswith(".yaml") else f"{stem}.yml")

    ordered = sorted(set(mistakes), key=lambda m: (m.stem != "fleet", m.stem or "", m.line, str(m.loc), m.text))
    lines = [f"{file(m.stem or 'fleet')}:{m.line}: {dotted(m.loc)}{': ' if m.loc else ''}{m.text}" for m in ordered]
    if len(lines) == 1:
        return InventoryError(lines[0])
    return InventoryError("\n".join([f"the inventory has {len(lines)} mistakes", *(f"  {line}" for line in lines)]))


def dotted(loc: Loc) -> str:
    """Return a path as people write it: ``workers.a.gpus[3]``, ``neighbours[vllm.service].kind``."""
    text = ""
    for part in loc:
        plain = isinstance(part, str) and re.fullmatch(r"[\w-]+", part)
        text += f".{part}" if plain else f"[{part}]"
    return text.removeprefix(".")


# ---------------------------------------------------------------- one mistake in words


def _explain(error: ValidationError, model: type[BaseModel], stem: str, doc: Document, prefix: Loc = ()) -> list[_Mistake]:
    """Say each of pydantic's errors in our words."""
    found = []
    for item in error.errors(include_url=False):
        loc: Loc = tuple(item["loc"])
        of_key = loc[-1:] == ("[key]",)
        if of_key:
            loc = loc[:-1]
        shape = _shape(model, loc, of_key=of_key)
        here = (*prefix, *loc)
        match item["type"]:
            case "extra_forbidden":
                parent = _shape(model, loc[:-1]).model
                keys = list(parent.model_fields) if parent else []
                close = difflib.get_close_matches(str(loc[-1]), keys, n=1)
                meant = f", did you mean {close[0]}?" if close else ""
                text = f"is not a key here{meant}; accepted: {', '.join(keys)}"
            case "missing":
                text = f"is missing; accepted: {shape.accepts}"
            case _:
                value = loc[-1] if of_key else item["input"]
                written = doc.text(here)
                text = f"cannot be {_shown(value, None if of_key else written)}; accepted: {shape.accepts}"
                if shape.wants_text and isinstance(value, int | float) and not isinstance(value, bool):
                    text += f' (as text, in quotes: "{written or value}")'
        found.append(_Mistake(stem, doc.line(here), here, text))
    return found


def _shown(value: object, written: str | None) -> str:
    match value:
        case None:
            return "empty"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"the number {written or value}"
        case str():
            return f'"{value if len(value) <= 60 else value[:57] + "..."}"'
        case dict():
            return "a mapping"
        case _:
            return "a list"


@dataclass(frozen=True)
class _Shape:
    """What the schema says about one place."""

    accepts: str
    model: type[BaseModel] | None = None
    wants_text: bool = False


def _shape(model: type[BaseModel], loc: Loc, *, of_key: bool = False) -> _Shape:
    annotation: Any = model
    extra: tuple[Any, ...] = ()
    for depth, part in enumerate(loc):
        annotation, _, _ = _plain(annotation)
        last = depth == len(loc) - 1
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            info = annotation.model_fields.get(str(part))
            if info is None:
                return _Shape("nothing")
            annotation, extra = info.annotation, tuple(info.metadata)
        elif get_origin(annotation) is dict:
            annotation, extra = get_args(annotation)[0 if of_key and last else 1], ()
        else:
            annotation, extra = get_args(annotation)[0] if get_args(annotation) else Any, ()
    annotation, metadata, optional = _plain(annotation)
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    accepts = _accepts(annotation, (*extra, *metadata)) + (", or nothing" if optional else "")
    return _Shape(accepts, annotation if is_model else None, annotation is str)


def _plain(annotation: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """Take ``Annotated`` and ``| None`` off: the type itself, its metadata, whether None is allowed."""
    metadata: tuple[Any, ...] = ()
    optional = False
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            metadata += tuple(more)
        elif get_origin(annotation) in (Union, types.UnionType):
            (annotation,) = (a for a in get_args(annotation) if a is not types.NoneType)
            optional = True
        else:
            return annotation, metadata, optional


def _accepts(annotation: Any, metadata: tuple[Any, ...]) -> str:
    for item in metadata:
        if isinstance(item, _Checked):
            return item.accepts
    origin = get_origin(annotation)
    if origin is Literal:
        return ", ".join(map(str, get_args(annotation)))
    if origin is tuple:
        inner, inner_metadata, _ = _plain(get_args(annotation)[0])
        return f"a list, each item {_accepts(inner, inner_metadata)}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"a mapping with the keys {', '.join(annotation.model_fields)}"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return words.get(annotation, "a mapping") + _bounds(metadata)


def _bounds(metadata: tuple[Any, ...]) -> str:
    words = []
    for item in metadata:
        bounds = item.metadata if hasattr(item, "metadata") else [item]
        for bound in bounds:
            match bound:
                case annotated_types.Ge(ge=low):
                    words.append(f"at least {low}")
                case annotated_types.Gt(gt=low):
                    words.append(f"above {low}")
                case annotated_types.Le(le=high):
                    words.append(f"at most {high}")
                case annotated_types.Lt(lt=high):
                    words.append(f"below {high}")
    return " " + " and ".join(words) if words else ""


# ---------------------------------------------------------------- what the values say about each other

_Found = Iterator[tuple[str, Loc, str]]


def _cross_checks(site: Site | None, hosts: Mapping[str, Host]) -> _Found:
    """Yield (file, path, mistake). Checks that need a file which is itself mistaken are left for the next try."""
    if site is not None:
        for name, pool in site.pools.items():
            yield from _check_pool(site, name, pool)
    for name, host in hosts.items():
        yield from _check_gpus(name, host)
        yield from _check_ports(name, host)
        yield from _check_neighbours(name, host)
        if site is not None:
            yield from _check_pools_of(site, name, host)
    yield from _check_identities(hosts)
    if site is not None:
        yield from _check_routes(site, hosts)


def _names(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names)) or "none is defined"


def _check_pool(site: Site, name: str, pool: Pool) -> _Found:
    at = ("pools", name)
    for key, image in (("image", pool.image), ("router_image", pool.router_image)):
        if image is not None and image not in site.images:
            yield "fleet", (*at, key), f"there is no image {image}; accepted: {_names(site.images)}"
    if pool.model not in site.models:
        yield "fleet", (*at, "model"), f"there is no model {pool.model}; accepted: {_names(site.models)}"
    elif site.models[pool.model].served_name is None:
        yield "fleet", ("models", pool.model), f"served_name is missing, and pool {name} serves it; accepted: text"
    yield from (("fleet", (*at, *loc), text) for loc, text in _check_engine(site, pool, pool.model))


def _check_engine(site: Site, engine: Engine, model: str) -> Iterator[tuple[Loc, str]]:
    if engine.stop_timeout_s <= engine.longest_stream_s:
        yield (
            ("stop_timeout_s",),
            (
                f"is {engine.stop_timeout_s}, which would cut off answers that may take {engine.longest_stream_s} s; "
                f"accepted: more than longest_stream_s"
            ),
        )
    if (draft := engine.draft) is None:
        return
    if draft.model is None:
        if draft.algorithm not in _NO_DRAFT_MODEL:
            yield ("draft",), f"{draft.algorithm} needs draft.model; accepted: {_names(site.models)}"
        if draft.quantization is not None:
            yield ("draft", "quantization"), "there is no draft model to apply it to; accepted: nothing"
    elif draft.algorithm == "NGRAM":
        yield ("draft", "model"), "NGRAM uses no draft model; accepted: nothing"
    elif draft.model not in site.models:
        yield ("draft", "model"), f"there is no model {draft.model}; accepted: {_names(site.models)}"
    elif draft.model == model:
        yield ("draft", "model"), "is the model itself, which would only slow it down; accepted: a smaller model"


def _check_gpus(name: str, host: Host) -> _Found:
    there = f"0 to {host.gpus.count - 1}"
    owner: dict[int, str] = {}
    for worker_name, worker in host.workers.items():
        at = ("workers", worker_name, "gpus")
        if worker.tp not in (1, 2, 4, 8):
            yield name, at, f"{worker.tp} GPUs do not divide the model's heads evenly; accepted: 1, 2, 4 or 8 GPUs"
        for position, gpu in enumerate(worker.gpus):
            if gpu >= host.gpus.count:
                yield name, (*at, position), f"the host has no GPU {gpu}; accepted: {there}"
            elif owner.get(gpu) == worker_name:
                yield name, (*at, position), f"GPU {gpu} is listed twice; accepted: each GPU once"
            elif gpu in owner:
                yield name, (*at, position), f"GPU {gpu} belongs to worker {owner[gpu]}; accepted: a GPU that no worker has"
            owner.setdefault(gpu, worker_name)


def _check_ports(name: str, host: Host) -> _Found:
    ports: list[tuple[Loc, int, str]] = [
        (("workers", worker_name, "port"), worker.port, f"worker {worker_name}") for worker_name, worker in host.workers.items()
    ]
    if host.router is not None:
        ports.append((("router", "port"), host.router.port, "the router"))
        ports.append((("router", "prometheus_port"), host.router.prometheus_port, "the router's metrics"))
    owner: dict[int, str] = {}
    for loc, port, who in ports:
        if port in owner:
            yield name, loc, f"port {port} belongs to {owner[port]}; accepted: a port of its own"
        owner.setdefault(port, who)


_NEIGHBOUR_NAMES: dict[str, tuple[str, str]] = {
    "unit": (r"[A-Za-z0-9:_.\\@-]+\.(service|socket|timer|target|path|mount)", "a unit's full name, such as vllm.service"),
    "program": (r"[A-Za-z0-9_.@-]+(:[A-Za-z0-9_.@-]+)?", "a supervisord program, or group:program"),
    "container": (r"[A-Za-z0-9][A-Za-z0-9_.-]+", "a container's name"),
    "compose": (r"[a-z0-9][a-z0-9_-]*", "a Compose project's name"),
}


def _check_neighbours(name: str, host: Host) -> _Found:
    for key, neighbour in host.neighbours.items():
        at = ("neighbours", key)
        pattern, accepts = _NEIGHBOUR_NAMES[neighbour.kind]
        if not re.fullmatch(pattern, key):
            yield name, at, f"is not the name of a {neighbour.kind}; accepted: {accepts}"
        if neighbour.kind == "program" and neighbour.policy == "replace":
            yield (
                name,
                (*at, "policy"),
                (
                    "a supervisord program cannot be replaced: supervisord has no way to disable one, so it would be back "
                    "after the next reboot; accepted: pause"
                ),
            )
        if neighbour.policy == "replace" and neighbour.gpu_memory_mib:
            yield name, (*at, "gpu_memory_mib"), "a replaced neighbour does not run and holds no memory; accepted: 0"
        if neighbour.gpu_memory_mib >= host.gpus.memory_mib:
            yield name, (*at, "gpu_memory_mib"), f"leaves nothing of a GPU; accepted: below {host.gpus.memory_mib}"
        for position, gpu in enumerate(neighbour.gpus or ()):
            if gpu >= host.gpus.count:
                yield name, (*at, "gpus", position), f"the host has no GPU {gpu}; accepted: 0 to {host.gpus.count - 1}"


def _check_pools_of(site: Site, name: str, host: Host) -> _Found:
    for worker_name, worker in host.workers.items():
        if worker.pool not in site.pools:
            yield name, ("workers", worker_name, "pool"), f"there is no pool {worker.pool}; accepted: {_names(site.pools)}"
    if host.router is None:
        return
    pool = site.pools.get(host.router.pool)
    if pool is None:
        yield name, ("router", "pool"), f"there is no pool {host.router.pool}; accepted: {_names(site.pools)}"
    elif pool.router_image is None:
        yield "fleet", ("pools", host.router.pool), f"router_image is missing, and {name} has a router for the pool"


def _check_identities(hosts: Mapping[str, Host]) -> _Found:
    addresses: dict[tuple[str, int | None], str] = {}
    machines: dict[str, str] = {}
    for name, host in hosts.items():
        address = (host.address, host.ssh.port)
        if address in addresses:
            yield name, ("address",), f"{host.address} is already host {addresses[address]}; accepted: one file a machine"
        addresses.setdefault(address, name)
        if host.machine_id is not None:
            if host.machine_id in machines:
                yield name, ("machine_id",), f"is also that of host {machines[host.machine_id]}; accepted: one file a machine"
            machines.setdefault(host.machine_id, name)


def _check_routes(site: Site, hosts: Mapping[str, Host]) -> _Found:
    for name, host in hosts.items():
        if (router := host.router) is None or router.pool not in site.pools:
            continue
        members = [(n, h, k, w) for n, h in hosts.items() for k, w in h.workers.items() if w.pool == router.pool]
        if not members:
            yield name, ("router", "pool"), f"no host has a worker in pool {router.pool}; accepted: a pool with workers"
        urls: dict[tuple[str, int], str] = {}
        for other, other_host, key, worker in members:
            if other != name and worker.listen.startswith("127."):
                yield (
                    other,
                    ("workers", key, "listen"),
                    (f"the router on {name} cannot reach {worker.listen}; accepted: an address of the host, or 0.0.0.0"),
                )
            url = (other_host.service_address or other_host.address, worker.port)
            if url in urls:
                yield other, ("workers", key, "port"), f"{url[0]}:{url[1]} is already {urls[url]} of the pool"
            urls.setdefault(url, f"worker {key} on {other}")


def _engine_mistakes(site: Site, hosts: Mapping[str, Host], documents: Mapping[str, Document]) -> list[_Mistake]:
    """Check what each worker's own settings make of its pool's."""
    found: list[_Mistake] = []
    for name, host in hosts.items():
        for key, worker in host.workers.items():
            pool = site.pools.get(worker.pool)
            if pool is None or not worker.engine:
                continue
            at, doc = ("workers", key, "engine"), documents[name]
            try:
                engine = Engine.model_validate(_merged(pool, worker.engine))
            except ValidationError as error:
                found += _explain(error, Engine, name, doc, at)
                continue
            for loc, text in _check_engine(site, engine, pool.model):
                found.append(_Mistake(name, doc.line((*at, *loc)), (*at, *loc), text))
    return found

# Attributes of nixpkgs, by what they are for. A test holds them to pyproject.toml and requirements.lock.
{
  # What the tool imports.
  runtime = [
    "fabric"
    "invoke"
    "jinja2"
    "markdown-it-py"
    "paramiko"
    "pydantic"
    "pytest"
    "pytest-testinfra"
    "pyyaml"
    "requests"
    "rich"
    "ruamel-yaml"
    "urllib3"
  ];

  # What tests, types and lint need besides.
  development = [
    "hypothesis"
    "mypy"
    "pytest-xdist"
    "types-paramiko"
    "types-pyyaml"
    "types-requests"
  ];

  # The same, but nixpkgs has them as programs of the top level and not as modules.
  programs = [
    "import-linter"
    "ruff"
  ];

  # What the others bring along. They would be there unnamed; named, the set is the lock file's.
  brought = [
    "annotated-types"
    "bcrypt"
    "certifi"
    "cffi"
    "charset-normalizer"
    "click"
    "cryptography"
    "decorator"
    "deprecated"
    "execnet"
    "grimp"
    "idna"
    "iniconfig"
    "librt"
    "markupsafe"
    "mdurl"
    "mypy-extensions"
    "packaging"
    "pathspec"
    "pluggy"
    "pycparser"
    "pydantic-core"
    "pygments"
    "pynacl"
    "sortedcontainers"
    "typing-extensions"
    "typing-inspection"
    "wrapt"
  ];

  # The lab fetches the locked router with it.
  lab = [ "pip" ];
}

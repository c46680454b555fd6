"""What a deploy keeps true of files and units, for pyinfra, which runs this file; BENCH_WANTED comes from bench/peers.py."""

import json
import os
from pathlib import Path

from pyinfra.operations import files, systemd

wanted = json.loads(Path(os.environ["BENCH_WANTED"]).read_text(encoding="utf-8"))
for file in wanted["wanted_files"]:
    files.put(src=file["source"], dest=file["path"], user="root", group="root", mode=file["mode"], _sudo=True)
for unit in wanted["wanted_units"]:
    systemd.service(service=unit, running=True, enabled=True, _sudo=True)

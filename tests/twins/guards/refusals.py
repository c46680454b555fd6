"""What a run refuses before it changes anything."""

from tests.twins.guards.guard import Guard

HOST = "lodger/states/host.py"
SERVICE = "lodger/states/service.py"
ENGINE = "lodger/engine.py"
SSH = "lodger/transport.py"
REFUSALS = "tests/twins/test_refusals.py"
BROKEN = f"{REFUSALS}::test_what_would_make_a_deploy_fail_is_refused_before_anything_is_changed"

GUARDS = [
    Guard("a full disk", HOST, "elif disk.free < _ROOM:", "elif False:", f"{BROKEN}[full disk]"),
    Guard("a read-only disk", HOST, "if not disk.writable:", "if False:", f"{BROKEN}[read-only /opt]"),
    Guard("no Docker", HOST, "if not docker.client:", "if False:", f"{BROKEN}[no Docker]"),
    Guard("no Compose", HOST, "version_key(docker.compose) < (2,)", "False", f"{BROKEN}[no Compose]"),
    Guard("no GPU hook", HOST, "docker.server and not docker.gpu_hook", "False", f"{BROKEN}[no GPU hook]"),
    Guard("no curl", HOST, "if not read[facts.CURL]:", "if False:", f"{BROKEN}[no curl]"),
    Guard(
        "the wrong driver",
        HOST,
        "if driver.loaded != self._driver:",
        "if False:",
        f"{REFUSALS}::test_driver_that_is_not_the_declared_one",
    ),
    Guard("weights cut short", "lodger/states/image.py", "folder.size < self._size", "False", f"{BROKEN}[weights cut short]"),
    Guard("a unit of our name", SERVICE, "not in installed.splitlines()", "in []", f"{BROKEN}[a unit of our name]"),
    Guard(
        "a container of our name",
        SERVICE,
        'if container is not None and container.labels.get("io.lodger.host") != self.host:',
        "if container is not None and False:",
        f"{BROKEN}[a container of our name]",
    ),
    Guard(
        "a stranger on a GPU",
        SERVICE,
        "if set(process.gpus) & set(self.service.gpus) and not known:",
        "if False:",
        f"{BROKEN}[somebody on a GPU]",
    ),
    Guard(
        "a stranger's container on a GPU",
        SERVICE,
        "if set(process.gpus) & set(self.service.gpus) and not known:",
        "if False:",
        f"{BROKEN}[somebody in a container on a GPU]",
    ),
    Guard(
        "the wrong machine",
        ENGINE,
        "if found != self.machine_id:",
        "if False:",
        f"{REFUSALS}::test_wrong_machine_at_the_address",
    ),
    Guard(
        "an unnamed machine",
        ENGINE,
        "        if self.machine_id is None:\n            hint",
        "        if False:\n            hint",
        f"{REFUSALS}::test_machine_whose_identity_is_not_recorded",
    ),
    Guard(
        "an unknown host key",
        SSH,
        "client.set_missing_host_key_policy(_Reject())",
        "pass",
        f"{REFUSALS}::test_unknown_host_key_is_not_accepted",
    ),
    Guard("a changed host key", SSH, "client.load_system_host_keys(str(path))", "pass", f"{REFUSALS}::test_changed_host_key"),
    Guard(
        "sudo that asks",
        SSH,
        'if command.sudo and "sudo" in said:',
        "if False:",
        f"{REFUSALS}::test_sudo_that_does_not_let_us[asks for a password]",
    ),
    Guard(
        "a login banner",
        SSH,
        'before, mark, rest = text.partition(nonce + "\\n")',
        'before, mark, rest = "", "x", text',
        f"{REFUSALS}::test_login_shell_that_prints_a_banner_is_no_obstacle",
    ),
    Guard(
        "another locale",
        SSH,
        '["env", "LC_ALL=C", *argv]',
        '["env", *argv]',
        f"{REFUSALS}::test_locale_that_is_not_english_is_no_obstacle",
    ),
    Guard(
        "a silent host",
        SSH,
        "if time.monotonic() - self._heard > SILENCE:\n                transport.close()",
        "if False:\n                transport.close()",
        f"{REFUSALS}::test_host_that_falls_silent_during_a_command_is_given_up",
    ),
    Guard(
        "a silent listener",
        SSH,
        "CONNECT = 15.0",  # one of the time-outs alone is no guard: the others end the wait too
        "CONNECT = 900.0",
        f"{REFUSALS}::test_host_that_answers_and_goes_silent",
    ),
    Guard("a live lock", ENGINE, "if verdict is lock.Verdict.LIVE or", "if", f"{REFUSALS}::test_live_lock_is_never_broken"),
    Guard(
        "an expired lock",
        ENGINE,
        "(verdict is lock.Verdict.EXPIRED and not self.break_lock)",
        "False",
        f"{REFUSALS}::test_expired_lock_needs_to_be_broken_by_hand",
    ),
    Guard(
        "a taken port",
        SERVICE,
        "return [*found, *self._port_taken(read)]",
        "return found",
        f"{REFUSALS}::test_port_that_somebody_listens_on",
    ),
    Guard(
        "an older checkout",
        "lodger/operate.py",
        "if not contained(revision):",
        "if False:",
        "tests/twins/test_deploy.py::test_checkout_older_than_what_is_deployed_is_refused",
    ),
    Guard(
        "bad usage",
        "lodger/cli.py",
        "code=2) from error",
        "code=1) from error",
        f"{REFUSALS}::test_bad_usage_ends_with_exit_2_and_a_hint",
    ),
]

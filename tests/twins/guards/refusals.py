"""What a run refuses before it changes anything."""

from tests.twins.guards.guard import Guard

REFUSALS = "tests/twins/test_refusals.py"
BROKEN = f"{REFUSALS}::test_what_would_make_a_deploy_fail_is_refused_before_anything_is_changed"

GUARDS = [
    Guard("a full disk", "elif disk.free < _ROOM:", "elif False:", f"{BROKEN}[full disk]"),
    Guard("a read-only disk", "if not disk.writable:", "if False:", f"{BROKEN}[read-only /opt]"),
    Guard("no Docker", "if not docker.client:", "if False:", f"{BROKEN}[no Docker]"),
    Guard("no Compose", "version_key(docker.compose) < (2,)", "False", f"{BROKEN}[no Compose]"),
    Guard("no GPU hook", "docker.server and not docker.gpu_hook", "False", f"{BROKEN}[no GPU hook]"),
    Guard("no curl", "if not read[facts.CURL]:", "if False:", f"{BROKEN}[no curl]"),
    Guard(
        "the wrong driver",
        "if driver.loaded != self._driver:",
        "if False:",
        f"{REFUSALS}::test_driver_that_is_not_the_declared_one",
    ),
    Guard("weights cut short", "folder.size < self._size", "False", f"{BROKEN}[weights cut short]"),
    Guard(
        "a unit of our name",
        'return f"{MARK}{host}" in text.splitlines()',
        "return True",
        f"{BROKEN}[a unit of our name]",
    ),
    Guard(
        "a container of our name",
        "if container is not None and not is_own_container(container, self.host):",
        "if container is not None and False:",
        f"{BROKEN}[a container of our name]",
    ),
    Guard(
        "a stranger on a GPU",
        "if set(process.gpus) & set(self.service.gpus) and not known:",
        "if False:",
        f"{BROKEN}[somebody on a GPU]",
    ),
    Guard(
        "a stranger's container on a GPU",
        "if set(process.gpus) & set(self.service.gpus) and not known:",
        "if False:",
        f"{BROKEN}[somebody in a container on a GPU]",
    ),
    Guard(
        "the wrong machine",
        "    refuse_other_machine(recorded, found)",
        "    pass",
        f"{REFUSALS}::test_wrong_machine_at_the_address",
    ),
    Guard(
        "an unnamed machine",
        "    if recorded is None:\n        hint",
        "    if False:\n        hint",
        f"{REFUSALS}::test_machine_whose_identity_is_not_recorded",
    ),
    Guard(
        "an unknown host key",
        "client.set_missing_host_key_policy(_Reject())",
        "pass",
        f"{REFUSALS}::test_unknown_host_key_is_not_accepted",
    ),
    Guard("a changed host key", "client.load_system_host_keys(str(path))", "pass", f"{REFUSALS}::test_changed_host_key"),
    Guard(
        "sudo that asks",
        'if command.sudo and "sudo" in said:',
        "if False:",
        f"{REFUSALS}::test_sudo_that_does_not_let_us[asks for a password]",
    ),
    Guard(
        "a login banner",
        'before, mark, rest = text.partition(nonce + "\\n")',
        'before, mark, rest = "", "x", text',
        f"{REFUSALS}::test_login_shell_that_prints_a_banner_is_no_obstacle",
    ),
    Guard(
        "another locale",
        '["env", "LC_ALL=C", *argv]',
        '["env", *argv]',
        f"{REFUSALS}::test_locale_that_is_not_english_is_no_obstacle",
    ),
    Guard(
        "a silent host",
        "if time.monotonic() - self._heard > SILENCE:\n                transport.close()",
        "if False:\n                transport.close()",
        f"{REFUSALS}::test_host_that_falls_silent_during_a_command_is_given_up",
    ),
    Guard(
        "a silent listener",
        "CONNECT = 15.0",  # one of the time-outs alone is no guard: the others end the wait too
        "CONNECT = 900.0",
        f"{REFUSALS}::test_host_that_answers_and_goes_silent",
    ),
    Guard("a live lock", "if verdict is host_lock.Verdict.LIVE or", "if", f"{REFUSALS}::test_live_lock_is_never_broken"),
    Guard(
        "an expired lock",
        "(verdict is host_lock.Verdict.EXPIRED and not self._break_lock)",
        "False",
        f"{REFUSALS}::test_expired_lock_needs_to_be_broken_by_hand",
    ),
    Guard(
        "a taken port",
        "return [*found, *self._port_taken(read)]",
        "return found",
        f"{REFUSALS}::test_port_that_somebody_listens_on",
    ),
    Guard(
        "an older checkout",
        "if not self.contains(revision):",
        "if False:",
        "tests/twins/test_deploy.py::test_checkout_older_than_what_is_deployed_is_refused",
    ),
    Guard(
        "bad usage",
        "code=2) from error",
        "code=1) from error",
        f"{REFUSALS}::test_bad_usage_ends_with_exit_2_and_a_hint",
    ),
]

"""Take each guard out once and watch its test go red: `python -m tests.lab.guards [WORD]`, in a clean checkout.

A guard is a piece of a source file; taken out, the test beside it must fail. Files are put back whatever happens. Not part of the
test run: it runs failing tests on twins for a quarter of an hour.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

from lab.run import CHECKOUT

REFUSALS, DEPLOY, INTERRUPTED = "tests/lab/test_refusals.py", "tests/lab/test_deploy.py", "tests/lab/test_interrupted.py"
POOL = "tests/lab/test_outages.py"
FETCHER, FETCH = "templates/fetch.sh", "tests/lab/test_fetch.py"
SCRIPT = "tests/unit/test_fetch_script.py"
FETCH_REFUSED = f"{FETCH}::test_what_is_known_to_fail_is_refused_before_anything_is_written"
DRIVER, RUNBOOKS = "tests/lab/test_driver_upgrade.py", "tests/lab/test_runbooks.py"
PAUSE = "tests/lab/test_pause.py"
BROKEN = f"{REFUSALS}::test_what_would_make_a_deploy_fail_is_refused_before_anything_is_changed"
KEY = "tests/lab/test_pool.py::test_a_key_opens_the_pool_goes_back_with_its_release_and_stands_nowhere_else"
DOCTOR = "tests/lab/test_doctor.py"


@dataclass(frozen=True)
class Guard:
    """What is guarded against, the file and text of the guard, what stands there without it, and the test."""

    against: str
    file: str
    text: str
    without: str
    test: str


HOST, SERVICE, ENGINE, SSH = "lodger/states/host.py", "lodger/states/service.py", "lodger/engine.py", "lodger/transport.py"
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
    Guard(
        "bytes that are wrong",
        FETCHER,
        '[ "$kind:$got" = "$hash" ] ||',
        "true ||",
        f"{SCRIPT}::test_a_hub_that_errs_for_a_while_is_borne_with",
    ),
    Guard(
        "a server without ranges",
        FETCHER,
        "    33)\n",
        "    no)\n",
        f"{SCRIPT}::test_a_hub_that_errs_for_a_while_is_borne_with",
    ),
    Guard(
        "a model half there",
        FETCHER,
        '|| fail "not everything could be fetched; what is there is kept"',
        "",
        f"{SCRIPT}::test_what_cannot_be_had_is_said_and_nothing_is_half_placed",
    ),
    Guard(
        "somebody's links where we work",
        FETCHER,
        """"$(id -u) 700" | "$(id -u) 2700") ;;""",
        "*) ;;",
        f"{SCRIPT}::test_what_somebody_else_has_put_where_we_work_is_not_written_through",
    ),
    Guard(
        "a link that takes the place of our folder",
        FETCHER,
        """cd -P -- "$stage" && [ "$(pwd -P)" = "$stage" ] ||""",
        """cd -P -- "$stage" ||""",
        f"{SCRIPT}::test_a_link_that_is_put_in_place_while_we_work_leads_nowhere",
    ),
    Guard(
        "a link that takes the place of a file's folder",
        FETCHER,
        """ && [ "$(pwd -P)/${1##*/}" = "$target/$1" ]""",
        "",
        f"{SCRIPT}::test_a_link_that_is_put_in_place_while_we_work_leads_nowhere",
    ),
    Guard(
        "a proxy between two of our hosts",
        FETCHER,
        "export no_proxy='*'",
        ":",
        f"{SCRIPT}::test_what_another_host_serves_comes_past_the_proxy",
    ),
    Guard(
        "files placed by a run that was killed, taken for somebody else's",
        FETCHER,
        ">> adopted && sync adopted ||",
        "> /dev/null ||",
        f"{SCRIPT}::test_killed_while_it_places_it_knows_what_it_placed",
    ),
    Guard(
        "all of it again after a kill",
        FETCHER,
        "-g -L -C - --proto",
        "-g -L --proto",
        f"{FETCH}::test_ten_kills_at_random_moments_cost_little_and_lose_nothing",
    ),
    Guard(
        "two fetches at once",
        "lodger/weights/host.py",
        "active | activating | deactivating | reloading) echo",
        "never) echo",
        f"{FETCH}::test_two_at_once_are_one",
    ),
    Guard(
        "a link out of models_dir",
        "lodger/weights/plan.py",
        'if found.real != f"{where}/{plan.directory}":',
        "if False:",
        f"{FETCH_REFUSED}[a link out of models_dir]",
    ),
    Guard("no room for weights", "lodger/weights/fetch.py", "if need > found.free:", "if False:", f"{FETCH_REFUSED}[no room]"),
    Guard(
        "a name out of the folder",
        "lodger/weights/plan.py",
        "        if why:",
        "        if False:",
        f"{FETCH_REFUSED}[a name that leaves the folder]",
    ),
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
        f"{REFUSALS}::test_checkout_older_than_what_is_deployed",
    ),
    Guard(
        "bad usage",
        "lodger/cli.py",
        "code=2) from error",
        "code=1) from error",
        f"{REFUSALS}::test_bad_usage_ends_with_exit_2_and_a_hint",
    ),
    Guard(
        "foreign losses",
        ENGINE,
        "outcome.losses = [change for change in changes if change.loss]",
        "outcome.losses = []",
        f"{INTERRUPTED}::test_something_foreign_that_stops_meanwhile_is_named_and_the_goal_stays",
    ),
    Guard(
        "a lost connection",
        ENGINE,
        "self.connection.reconnect()\n        self._settle()",
        "raise ConnectionLost('gone')",
        f"{INTERRUPTED}::test_a_dropped_connection_is_made_again_and_the_run_goes_on",
    ),
    Guard(
        "a dead controller's lock",
        "lodger/lock.py",
        "if gone:",
        "if False:",
        f"{INTERRUPTED}::test_a_killed_deploy_is_finished_by_the_next_one[after the neighbour stopped]",
    ),
    Guard(
        "requests on a worker that is stopped",
        "lodger/states/rotation.py",
        "if not listed or not self._due(read):",
        "if True:",
        "tests/lab/test_pool.py::test_a_rolling_deploy_and_its_rollback_fail_no_request",
    ),
    Guard(
        "another person's turn in a pool",
        ENGINE,
        "self._patiently(lambda: turns.take(step.turns, waiting))",
        "pass",
        "tests/lab/test_pool.py::test_a_pool_that_drifted_is_shown_by_plan_and_mended_in_turn_without_a_restart",
    ),
    Guard(
        "a key that stays when its release goes",
        "lodger/operate.py",
        "keys=earlier_keys(wanted),",
        "",
        KEY,
    ),
    Guard(
        "a key among what is read of a host",
        "lodger/facts.py",
        '"/opt/lodger/releases /etc/systemd/system',
        '"/opt/lodger/releases /etc/lodger /etc/systemd/system',
        KEY,
    ),
    Guard(
        "a stranger in a pool",
        "lodger/states/rotation.py",
        "if differs and not mate.changing:",
        "if False:",
        "tests/lab/test_pool.py::test_one_host_alone_may_not_serve_something_else_than_its_pool",
    ),
    Guard(
        "an undo left out",
        ENGINE,
        "if step.state.name in run.ledger.acted]",
        "if False]",
        f"{INTERRUPTED}::test_a_run_that_is_asked_to_stop_undoes_what_it_did",
    ),
    Guard(
        "a second try at a dead worker",
        "hosts/fleet.yml",
        "retry_after_s: 6",
        "retry_after_s: 1",
        f"{POOL}::test_a_killed_worker_costs_what_it_was_working_on_and_gets_its_share_back",
    ),
    Guard(
        "what the second router leaves behind",
        "lodger/probe.py",
        "ExecStopPost=/bin/sh -c '{down}; rm -f {file}'",
        "ExecStopPost=/bin/true",
        f"{POOL}::test_prompts_return_to_their_worker_and_under_round_robin_they_do_not",
    ),
    Guard(
        "a boot in mid run",
        ENGINE,
        "elif run.boot != self._boot:",
        "elif False:",
        f"{DRIVER}::test_a_reboot_in_mid_run_has_the_run_begin_again_with_the_first_state",
    ),
    Guard(
        "a locked dpkg",
        ENGINE,
        "if state.only_waits and not run.begun:",
        "if False:",
        f"{DRIVER}::test_a_dpkg_that_is_locked_is_waited_for_and_then_it_is_a_refusal",
    ),
    Guard(
        "a mistake of our own",
        ENGINE,
        "except (Exception, KeyboardInterrupt) as error:",
        "except (LodgerError, KeyboardInterrupt) as error:",
        f"{RUNBOOKS}::test_a_mistake_of_our_own_is_undone_and_reported_like_any_failure",
    ),
    Guard(
        "a GPU user that nobody declared",
        "lodger/states/driver.py",
        "if ours or names(owner, read) & self.neighbours.keys():",  # two states look: each alone is no guard
        "if True:",
        f"{DRIVER}::test_what_stands_in_the_way_is_refused_by_name_and_nothing_is_stopped",
    ),
    Guard(
        "the driver's own daemon on the GPUs",
        "lodger/states/driver.py",
        "systemctl stop nvidia-persistenced.service 2>/dev/null || true\\n",
        "",
        f"{DRIVER}::test_a_failure_after_the_new_driver_was_loaded_goes_all_the_way_back",
    ),
    Guard(
        "needrestart after our installation",
        "lodger/states/driver.py",
        " NEEDRESTART_SUSPEND=1",
        "",
        f"{DRIVER}::test_the_driver_is_upgraded_and_everybody_is_back",
    ),
    Guard(
        "modules that an unloading took away before it failed",
        "lodger/states/driver.py",
        """{_load(before[KERNEL])}
nvidia-smi""",
        "nvidia-smi",
        f"{DRIVER}::test_a_failure_leaves_the_old_driver_with_everybody_back[phantom-user-]",
    ),
    Guard(
        "apt's own folder among ours",
        "lodger/packages.py",
        ', "-o", "APT::Sandbox::User=root")',
        ")",
        f"{DRIVER}::test_every_gpu_user_is_traced_to_its_owner_and_once_declared_paused_and_put_back",
    ),
    Guard(
        "a person who starts a paused worker",
        "templates/service.j2",
        "ConditionPathExists=!{{ record }}",
        "ConditionPathExists=!{{ record }}\nConditionPathExists=",  # an empty one takes all before it back
        f"{PAUSE}::test_neither_a_boot_nor_a_person_starts_it",
    ),
    Guard(
        "a stranger whom a timer meets",
        "templates/resume.sh.j2",
        'if [ -n "$others" ]; then',
        "if false; then",
        f"{PAUSE}::test_a_stranger_on_the_gpus_is_named_waited_for_and_then_it_comes_back_by_itself",
    ),
    Guard(
        "a deploy that wakes a paused worker",
        "lodger/runbook.py",
        "if not isinstance(item, Managed) or item.name not in at.paused:",
        "if True:",
        f"{PAUSE}::test_a_deploy_leaves_it_paused_and_its_files_are_the_new_ones",
    ),
    Guard(
        "a hand-edited file",
        "lodger/states/release.py",
        "elif found.content != content.text or",
        "elif",
        f"{DEPLOY}::test_a_file_edited_on_the_host_shows_in_the_plan_and_is_mended",
    ),
    Guard(
        "reconstructed files that stay",
        "lodger/weights/fetch.py",
        "            if not self.options.dry_run:",
        "            if False:",
        f"{FETCH}::test_weights_are_fetched_once_verified_and_put_right_only_when_asked",
    ),
    Guard(
        "a mount that hangs",
        "lodger/health.py",
        'timeout -s KILL {_MOUNT_ANSWERS} stat -f -- "$path" >/dev/null',
        'stat -f -- "$path" >/dev/null',
        f"{DOCTOR}::test_hardware_clock_ports_mounts_and_room_that_are_broken_are_named",
    ),
    Guard(
        "a driver apart from its library",
        "lodger/doctor.py",
        'if "version mismatch" in found.complaint:',
        "if False:",
        f"{DOCTOR}::test_an_upgrade_that_stopped_half_way_is_named_with_what_is_apart",
    ),
    Guard(
        "another machine under examination",
        "lodger/runs.py",
        "if host.machine_id is not None and (found := read[facts.MACHINE].machine_id) != host.machine_id:",
        "if False:",
        f"{DOCTOR}::test_a_bare_machine_is_examined_too_and_another_machine_is_refused",
    ),
]


def red(guard: Guard) -> bool:
    """Whether the test fails without the guard."""
    path = CHECKOUT / guard.file
    whole = path.read_text()
    if whole.count(guard.text) != 1:
        raise SystemExit(
            f"{guard.file} has {whole.count(guard.text)} times {guard.text!r}: name the guard against {guard.against} anew"
        )
    path.write_text(whole.replace(guard.text, guard.without))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", guard.test],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
    finally:
        path.write_text(whole)
    if " failed" not in done.stdout and " passed" not in done.stdout:
        raise SystemExit(f"{guard.test} neither passed nor failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return " failed" in done.stdout


def main() -> None:
    """Print a line a guard; end with 1 when any test stayed green."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    green = 0
    for guard in GUARDS:
        if word in guard.against:
            seen = red(guard)
            green += not seen
            print(f"{'red  ' if seen else 'GREEN'}  without the guard against {guard.against}", flush=True)
    sys.exit(green > 0)


if __name__ == "__main__":
    main()

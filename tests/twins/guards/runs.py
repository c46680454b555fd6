"""What may happen while a run goes on, and what a look at a host has to find."""

from tests.twins.guards.guard import Guard

DEPLOY = "tests/twins/test_deploy.py"
INTERRUPTED = "tests/twins/test_interrupted.py"
RUNBOOKS = "tests/twins/test_runbooks.py"
DOCTOR = "tests/twins/test_doctor.py"

GUARDS = [
    Guard(
        "foreign losses",
        "result.losses = [change for change in changes if change.loss]",
        "result.losses = []",
        f"{INTERRUPTED}::test_something_foreign_that_stops_meanwhile_is_named_and_the_goal_stays",
    ),
    Guard(
        "a lost connection",
        "self.connection.reconnect()\n        self.settle()",
        "raise ConnectionLost('gone')",
        f"{INTERRUPTED}::test_a_dropped_connection_is_made_again_and_the_run_goes_on",
    ),
    Guard(
        "a dead controller's lock",
        "if gone:",
        "if False:",
        f"{INTERRUPTED}::test_a_killed_deploy_is_finished_by_the_next_one",
    ),
    Guard(
        "an undo left out",
        "if step.state.name in run.ledger.acted]",
        "if False]",
        f"{INTERRUPTED}::test_a_run_that_is_asked_to_stop_undoes_what_it_did",
    ),
    Guard(
        "a mistake of our own",
        "except (Exception, KeyboardInterrupt) as error:",
        "except (LodgerError, KeyboardInterrupt) as error:",
        f"{RUNBOOKS}::test_a_mistake_of_our_own_is_undone_and_reported_like_any_failure",
    ),
    Guard(
        "a hand-edited file",
        "elif (found.content, found.mode) != (wanted.content, wanted.mode) or",
        "elif",
        f"{DEPLOY}::test_a_file_edited_on_the_host_shows_in_the_plan_and_is_mended",
    ),
    Guard(
        "a mount that hangs",
        'timeout -s KILL {_MOUNT_ANSWERS} stat -f -- "$path" >/dev/null',
        'stat -f -- "$path" >/dev/null',
        f"{DOCTOR}::test_hardware_clock_ports_mounts_and_room_that_are_broken_are_named",
    ),
    Guard(
        "a driver apart from its library",
        'if "version mismatch" in found.complaint:',
        "if False:",
        f"{DOCTOR}::test_an_upgrade_that_stopped_half_way_is_named_with_what_is_apart",
    ),
    Guard(
        "another machine under examination",
        "refuse_other_machine(host.machine_id, read[facts.MACHINE])\n            ran, command = None",
        "ran, command = None",
        f"{DOCTOR}::test_a_bare_machine_is_examined_too_and_another_machine_is_refused",
    ),
]

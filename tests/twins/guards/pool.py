"""What keeps a pool serving and its key secret, and a paused worker paused."""

from tests.twins.guards.guard import Guard

ENGINE = "lodger/engine.py"
PAUSE = "tests/twins/pool/test_pause.py"
OUTAGES = "tests/twins/pool/test_outages.py"
POOL = "tests/twins/pool/test_deploy.py"
KEY = "tests/twins/test_api_key.py::test_a_key_opens_the_pool_goes_back_with_its_release_and_stands_nowhere_else"

GUARDS = [
    Guard(
        "requests on a worker that is stopped",
        "lodger/states/rotation.py",
        "if not listed or not self._due(read):",
        "if True:",
        f"{POOL}::test_a_rolling_deploy_and_its_rollback_fail_no_request",
    ),
    Guard(
        "another person's turn in a pool",
        ENGINE,
        "self._patiently(lambda: turns.take(step.turns, waiting))",
        "pass",
        f"{POOL}::test_a_pool_that_drifted_is_shown_by_plan_and_mended_in_turn_without_a_restart",
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
        f"{POOL}::test_one_host_alone_may_not_serve_something_else_than_its_pool",
    ),
    Guard(
        "a second try at a dead worker",
        "hosts/fleet.yml",
        "retry_after_s: 6",
        "retry_after_s: 1",
        f"{OUTAGES}::test_a_killed_worker_costs_what_it_was_working_on_and_gets_its_share_back",
    ),
    Guard(
        "what the second router leaves behind",
        "lodger/probe.py",
        "ExecStopPost=/bin/sh -c '{down}; rm -f {file}'",
        "ExecStopPost=/bin/true",
        f"{OUTAGES}::test_prompts_return_to_their_worker_and_under_round_robin_they_do_not",
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
]

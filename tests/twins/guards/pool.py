"""What keeps a pool serving and its key secret, and a paused worker paused."""

from tests.twins.guards.guard import Guard

PAUSE = "tests/twins/pool/test_pause.py"
OUTAGES = "tests/twins/pool/test_outages.py"
POOL = "tests/twins/pool/test_deploy.py"
KEY = "tests/twins/test_api_key.py::test_a_key_opens_the_pool_goes_back_with_its_release_and_stands_nowhere_else"

GUARDS = [
    Guard(
        "requests on a worker that is stopped",
        "if not listed or not self._due(read):",
        "if True:",
        f"{POOL}::test_a_rolling_deploy_and_its_rollback_fail_no_request",
    ),
    Guard(
        "another person's turn in a pool",
        "self.patiently(lambda: lock.take(step.pools, waiting))",
        "pass",
        f"{POOL}::test_a_pool_that_drifted_is_shown_by_plan_and_mended_in_turn_without_a_restart",
    ),
    Guard(
        "a key that stays when its release goes",
        "keys=earlier_keys(back), ",
        "",
        KEY,
    ),
    Guard(
        "a key among what is read of a host",
        'f"{paths.RELEASES} {paths.UNITS} ',
        'f"{paths.RELEASES} {paths.ETC} {paths.UNITS} ',
        KEY,
    ),
    Guard(
        "a stranger in a pool",
        "if differs and not member.changing:",
        "if False:",
        f"{POOL}::test_one_host_alone_may_not_serve_something_else_than_its_pool",
    ),
    Guard(
        "a second try at a dead worker",
        "retry_after_s: 6",
        "retry_after_s: 1",
        f"{OUTAGES}::test_a_killed_worker_costs_what_it_was_working_on_and_gets_its_share_back",
    ),
    Guard(
        "what the second router leaves behind",
        "ExecStopPost=/bin/sh -c '{down}; rm -f {file}'",
        "ExecStopPost=/bin/true",
        f"{OUTAGES}::test_prompts_return_to_their_worker_and_under_round_robin_they_do_not",
    ),
    Guard(
        "a person who starts a paused worker",
        "ConditionPathExists=!{{ record }}",
        "ConditionPathExists=!{{ record }}\nConditionPathExists=",  # an empty one takes all before it back
        f"{PAUSE}::test_neither_a_boot_nor_a_person_starts_it",
    ),
    Guard(
        "a stranger whom a timer meets",
        'if [ -n "$others" ]; then',
        "if false; then",
        f"{PAUSE}::test_a_stranger_on_the_gpus_is_named_waited_for_and_then_it_comes_back_by_itself",
    ),
    Guard(
        "a deploy that wakes a paused worker",
        "if not isinstance(item, Service) or item.name not in target.paused:",
        "if True:",
        f"{PAUSE}::test_a_deploy_leaves_it_paused_and_its_files_are_the_new_ones",
    ),
]

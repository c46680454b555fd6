"""What a driver upgrade needs to go through, or back."""

from tests.twins.guards.guard import Guard

UNDO = "tests/twins/driver/test_undo.py"
UPGRADE = "tests/twins/driver/test_upgrade.py"
REFUSED = "tests/twins/driver/test_refusals.py"
CUT_OFF = "tests/twins/driver/test_cut_off.py"
USERS = f"{UPGRADE}::test_every_gpu_user_is_traced_to_its_owner_and_once_declared_everybody_is_back_on_the_new_driver"

GUARDS = [
    Guard(
        "a boot in mid run",
        "elif run.boot != self.session.boot:",
        "elif False:",
        f"{CUT_OFF}::test_a_reboot_in_mid_run_has_the_run_begin_again_with_the_first_state",
    ),
    Guard(
        "a locked dpkg",
        "if state.only_waits and not run.begun:",
        "if False:",
        f"{CUT_OFF}::test_a_dpkg_that_is_locked_is_waited_for_and_a_link_lost_while_it_works_is_no_harm",
    ),
    Guard(
        "a GPU user that nobody declared",
        "if is_ours(owner, read, self.host) or names(owner, read) & self.neighbours:",  # two states look: each alone is no guard
        "if True:",
        f"{REFUSED}::test_what_stands_in_the_way_is_refused_by_name_and_nothing_is_stopped",
    ),
    Guard(
        "the driver's own daemon on the GPUs",
        "{stop} 2>/dev/null || true\\n",
        "",
        f"{UNDO}::test_a_worker_that_the_driver_cannot_run_is_found_last_and_everything_is_undone",
    ),
    Guard(
        "needrestart after our installation",
        " NEEDRESTART_SUSPEND=1",
        "",
        USERS,
    ),
    Guard(
        "modules that an unloading took away before it failed",
        """{load_script(before[KERNEL])}
nvidia-smi""",
        "nvidia-smi",
        f"{UNDO}::test_a_failure_leaves_the_old_driver_with_everybody_back[phantom-user-]",
    ),
    Guard(
        "apt's own folder among ours",
        ', "-o", "APT::Sandbox::User=root")',
        ")",
        USERS,
    ),
]

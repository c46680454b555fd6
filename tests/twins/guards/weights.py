"""What a fetch of weights is kept from."""

from tests.twins.guards.guard import Guard

SCRIPT = "tests/unit/weights/test_fetch_script.py"
UNHASHED = "tests/unit/weights/test_fetch_script_unhashed.py"
FETCH = "tests/twins/test_fetch.py"
FETCH_REFUSED = f"{FETCH}::test_what_is_known_to_fail_is_refused_before_anything_is_written"

GUARDS = [
    Guard(
        "bytes that are wrong",
        '[ "$kind:$got" = "$hash" ] ||',
        "true ||",
        f"{SCRIPT}::test_a_hub_that_errs_for_a_while_is_borne_with",
    ),
    Guard(
        "a server without ranges",
        "    33)\n",
        "    no)\n",
        f"{SCRIPT}::test_a_hub_that_errs_for_a_while_is_borne_with",
    ),
    Guard(
        "a model half there",
        '|| fail "not everything could be fetched; what is there is kept"',
        "",
        f"{SCRIPT}::test_what_cannot_be_had_is_said_and_nothing_is_half_placed",
    ),
    Guard(
        "somebody's links where we work",
        """"$(id -u) 700" | "$(id -u) 2700") ;;""",
        "*) ;;",
        f"{SCRIPT}::test_what_somebody_else_has_put_where_we_work_is_not_written_through",
    ),
    Guard(
        "a link that takes the place of our folder",
        """cd -P -- "$stage" && [ "$(pwd -P)" = "$stage" ] ||""",
        """cd -P -- "$stage" ||""",
        f"{SCRIPT}::test_a_link_that_is_put_in_place_while_we_work_leads_nowhere",
    ),
    Guard(
        "a link that takes the place of a file's folder",
        """ && [ "$(pwd -P)/${1##*/}" = "$target/$1" ]""",
        "",
        f"{SCRIPT}::test_a_link_that_is_put_in_place_while_we_work_leads_nowhere",
    ),
    Guard(
        "a proxy between two of our hosts",
        "export no_proxy='*'",
        ":",
        f"{UNHASHED}::test_what_another_host_serves_comes_past_the_proxy",
    ),
    Guard(
        "files placed by a run that was killed, taken for somebody else's",
        ">> adopted && sync adopted ||",
        "> /dev/null ||",
        f"{UNHASHED}::test_killed_while_it_places_it_knows_what_it_placed",
    ),
    Guard(
        "all of it again after a kill",
        "-g -L -C - --proto",
        "-g -L --proto",
        f"{FETCH}::test_ten_kills_at_random_moments_cost_little_and_lose_nothing",
    ),
    Guard(
        "two fetches at once",
        "active | activating | deactivating | reloading) echo",
        "never) echo",
        f"{FETCH}::test_two_at_once_are_one",
    ),
    Guard(
        "a link out of models_dir",
        'if found.real != f"{where}/{plan.directory}":',
        "if False:",
        f"{FETCH_REFUSED}[a link out of models_dir]",
    ),
    Guard("no room for weights", "if need > found.free:", "if False:", f"{FETCH_REFUSED}[no room]"),
    Guard(
        "a name out of the folder",
        "        if why:",
        "        if False:",
        f"{FETCH_REFUSED}[a name that leaves the folder]",
    ),
    Guard(
        "reconstructed files that stay",
        "            if not self.options.dry_run:",
        "            if False:",
        f"{FETCH}::test_weights_are_fetched_once_verified_and_put_right_only_when_asked",
    ),
]

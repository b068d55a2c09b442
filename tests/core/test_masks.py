"""The tables of masked paths, and what a person adds to them or takes away."""

from fumehood.core.masks import HOME_SECRETS, PROC_SECRETS, SYSTEM_SECRETS, make_masks, mask_reason


def hidden(*, mask=(), unmask=(), as_root=False):
    return make_masks(["/home/ada"], ["/home/ada/.local/state/fumehood"], mask, unmask, as_root=as_root)


def test_secrets_of_the_home_are_hidden_and_those_of_the_system_only_from_root():
    found = hidden()
    assert {"/home/ada/.ssh", "/home/ada/.aws", "/home/ada/.bash_history"} <= set(found.hidden)
    assert "/etc/shadow" not in found.hidden
    assert "/etc/shadow" in hidden(as_root=True).hidden


def test_every_home_of_a_person_is_masked():
    found = make_masks(["/tmp/other", "/home/ada"], [], [], [], as_root=False)
    assert {"/tmp/other/.ssh", "/home/ada/.ssh"} <= set(found.hidden)


def test_a_person_adds_paths_of_their_own_and_of_their_home_and_names_in_every_root():
    found = hidden(mask=["/srv/keys/", "~/private", "./.env"])
    assert {"/srv/keys", "/home/ada/private"} <= set(found.hidden)
    assert found.in_roots == (".env",)


def test_a_person_takes_a_mask_away_wholly_or_shows_something_inside():
    found = hidden(unmask=["~/.docker", "~/.ssh/known_hosts"])
    assert "/home/ada/.docker" not in found.hidden
    assert "/home/ada/.ssh" in found.hidden
    assert "/home/ada/.ssh/known_hosts" in found.shown


def test_every_entry_has_a_reason_and_is_in_its_table_once():
    for table in (HOME_SECRETS, SYSTEM_SECRETS, PROC_SECRETS):
        assert all(why for _, why in table)
        assert len({path for path, _ in table}) == len(table)
    assert mask_reason("/home/ada/.ssh/id_rsa", "/home/ada") == "keys"
    assert mask_reason("/srv/x", "/home/ada") == "you masked it"

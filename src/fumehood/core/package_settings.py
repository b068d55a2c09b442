"""What a command may see of the settings of package managers, hg and jj: addresses without credentials, plain options.

Each manager has a table of settings that are no secret; the rest is left out, and so is what has a secret for a value
or names a file in the home. What looks like a secret is guessed, and the guesses err on the side of yes.
"""

from __future__ import annotations

from fumehood.core.environment import looks_secret
from fumehood.core.value import DIGITS, LETTERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any
    from xml.etree.ElementTree import Element

    Schema = Mapping[str, "str | Schema"]

# A user without a password in these is a name, like git@; elsewhere it may be a token.
_NAMED_USERS = ("ssh", "git+ssh", "ssh+git", "svn+ssh", "sftp", "rsync")
_IN_WORDS = LETTERS | DIGITS | frozenset("_-.+~")
_IN_SCHEMES = _IN_WORDS - frozenset("_~")
_ENDS = frozenset(" \t\r\n\"'`<>,|;(){}")  # what no address has in it, where a text has several
_LONGEST_SCHEME, _LONGEST_ADDRESS = 16, 2048
_BETWEEN_PATHS = "\"'`=:;,()|&<>!{}\t\n\r"
_HEADERS = ("authorization", "-----begin ")
_SCHEMES = ("bearer ", "basic ")  # of a header, before a token of at least so many letters
_SHORTEST_TOKEN = 6
_SHORTEST_RANDOM, _SURELY_RANDOM = 16, 32


def may_hold_secret(text: str) -> bool:
    """Return True if a text has a token of a known shape in it, or an address with credentials."""
    lowered = text.lower()
    if any(header in lowered for header in _HEADERS):
        return True
    for scheme in _SCHEMES:
        following = lowered.partition(scheme)[2].split(maxsplit=1)
        if following and len(following[0]) >= _SHORTEST_TOKEN:
            return True
    return any(looks_secret("", word) for word in words_of(text)) or any(map(has_credentials, addresses_in(text)))


def announces_secret(text: str) -> bool:
    """Return True if a line that is run, or an option, has a secret in it or a word that precedes one: `--token`."""
    return may_hold_secret(text) or any(looks_secret(word.strip("-.+~")) or is_random(word) for word in words_of(text))


def has_credentials(address: str) -> bool:
    """Return True if an address has a user or password, or a part that looks like a token."""
    scheme, _, rest = address.partition("://")
    user, host, path = _parts(rest)
    if user is not None and (":" in user or scheme.lower() not in _NAMED_USERS):
        return True
    port = host.rpartition("]")[2].partition(":")[2]
    if port and not port.isdigit() and not port.startswith("$"):
        return True  # a slash in a password: what seems to be the port is its beginning
    _, _, query = path.partition("?")
    return any(is_random(word) for word in words_of(path)) or any(looks_secret(word) for word in words_of(query))


def without_credentials(address: str) -> str | None:
    """Return an address less its user and password, or None where a secret may be left in it."""
    scheme, is_address, rest = address.partition("://")
    if not is_address:
        return None if may_hold_secret(address) or is_random(address) else address
    user, host, path = _parts(rest)
    if user is not None and ":" not in user and scheme.lower() in _NAMED_USERS:
        host = f"{user}@{host}"
    bare = f"{scheme}://{host}{path}"
    return None if may_hold_secret(bare) else bare


def addresses_in(text: str) -> Iterator[str]:
    """Yield each `scheme://…` of a text."""
    at = text.find("://")
    while at >= 0:
        begin = at
        while begin > 0 and text[begin - 1] in _IN_SCHEMES and at - begin < _LONGEST_SCHEME:
            begin -= 1
        rest = text[at : at + _LONGEST_ADDRESS]
        end = next((number for number, letter in enumerate(rest) if letter in _ENDS), len(rest))
        yield text[begin:at] + rest[:end]
        at = text.find("://", at + 3)


def words_of(text: str) -> list[str]:
    """Return what stands between blanks, quotes, slashes and the like."""
    return "".join(letter if letter in _IN_WORDS else " " for letter in text).split()


def is_random(word: str) -> bool:
    """Return True if letters and digits stand in a word as if drawn by lot, as in a token; a guess."""
    letters = word.replace("-", "").replace("_", "")
    if len(letters) < _SHORTEST_RANDOM or not (LETTERS | DIGITS).issuperset(letters):
        return False
    if len(letters) >= _SURELY_RANDOM and letters == word and not letters.isdigit() and not letters.isalpha():
        return True
    kinds = ["0" if letter.isdigit() else "A" if letter.isupper() else "a" for letter in letters]
    changes = sum(kinds[at] != kinds[at - 1] for at in range(1, len(kinds)))
    return changes * 3 >= len(letters)


def paths_below(text: str, homes: Sequence[str]) -> Iterator[str]:
    """Yield each path of a home that a text names: a whole one, or `~/…`, `$HOME/…`; another's, `~user/…`, as it is."""
    text = text.replace("${HOME}", "~").replace("$HOME", "~")
    for letter in _BETWEEN_PATHS:
        text = text.replace(letter, " ")
    for word in text.split(" "):
        if word == "~" or word.startswith("~/"):
            yield homes[0] + word[1:]
        elif (word.startswith("~") and "/" in word) or any(f"{word}/".startswith(f"{home}/") for home in homes):
            yield word


def _parts(rest: str) -> tuple[str | None, str, str]:
    """Split what follows `://` into user and password or None, host and port, and the rest."""
    end = min((rest.find(mark) for mark in "/?#" if mark in rest), default=len(rest))
    user, at, host = rest[:end].rpartition("@")
    return user if at else None, host, rest[end:]


# What a setting holds: an address or host, or several; an option; a directory that a program makes if it is missing.
ADDRESS, OPTION, PLACE = "address", "option", "place"
_ANY = "*"  # in a schema: every other name
_MOST_VALUES = 10_000  # references in YAML make much of little
_BETWEEN = " \t\r\n,|"  # addresses of a list
_NEEDED = "!"  # in a schema: the name without which the rest of a table is of no use


def _schema(addresses: str = "", options: str = "", places: str = "", **more: str | Schema) -> Schema:
    kinds = ((addresses, ADDRESS), (options, OPTION), (places, PLACE))
    return {name: kind for names, kind in kinds for name in names.split()} | more


PIP = _schema(
    "index-url extra-index-url find-links trusted-host",
    """
    abi break-system-packages compile config-settings default-timeout disable-pip-version-check exists-action format
    global-option ignore-requires-python implementation isolated no-binary no-build-isolation no-cache-dir
    no-clean no-color no-compile no-deps no-index no-input no-python-version-warning no-warn-conflicts
    no-warn-script-location only-binary platform pre prefer-binary progress-bar python-version quiet require-hashes
    require-virtualenv resume-retries retries root-user-action timeout upgrade-strategy uploaded-prior-to use-deprecated
    use-feature use-pep517 user verbose
    """,
)
_UV_BOTH = """
    compile-bytecode config-settings exclude-newer exclude-newer-package fork-strategy index-strategy link-mode
    no-binary no-binary-package no-build no-build-isolation no-build-isolation-package no-build-package no-index
    no-sources prerelease resolution
"""
_UV_ADDRESSES = "index-url extra-index-url find-links"
UV = _schema(
    f"{_UV_ADDRESSES} allow-insecure-host python-install-mirror pypy-install-mirror",
    _UV_BOTH + """
    concurrent-builds concurrent-downloads concurrent-installs constraint-dependencies dependency-metadata
    environments native-tls no-cache offline override-dependencies preview python-downloads python-preference
    reinstall required-environments required-version system-certs
    """,
    index={
        **_schema("url", "authenticate cache-control default explicit format ignore-error-codes name"), _NEEDED: "url"
    },
    pip=_schema(
        _UV_ADDRESSES,
        _UV_BOTH + """
        all-extras allow-empty-requirements annotation-style break-system-packages emit-build-options
        emit-find-links emit-index-annotation emit-index-url emit-marker-expression extra generate-hashes no-annotate
        no-deps no-emit-package no-extra no-header no-strip-extras no-strip-markers python-platform python-version
        reinstall require-hashes strict system torch-backend universal upgrade verify-hashes
        """,
    ),
)  # fmt: skip
# Scoped registries, `@scope:registry`, are looked for apart. Some are pnpm's.
NPM = _schema(
    "registry",
    """
    audit audit-level auto-install-peers before bin-links color commit-hooks dedupe-peer-dependents depth
    engine-strict fetch-retries fetch-retry-factor fetch-retry-maxtimeout fetch-retry-mintimeout fetch-timeout
    foreground-scripts format-package-lock fund heading hoist hoist-pattern ignore-scripts include
    include-workspace-root init-author-email init-author-name init-author-url init-license init-type init-version
    install-links install-strategy legacy-bundling legacy-peer-deps link-workspace-packages lockfile
    lockfile-version loglevel maxsockets min-release-age minimum-release-age network-concurrency node-linker offline
    omit omit-lockfile-registry-resolved optional package-lock prefer-dedupe prefer-frozen-lockfile prefer-offline
    prefer-online prefer-workspace-packages progress public-hoist-pattern replace-registry-host resolution-mode
    save save-bundle save-dev save-exact save-optional save-peer save-prefix save-prod save-workspace-protocol
    shamefully-hoist shared-workspace-lockfile side-effects-cache strict-peer-deps strict-peer-dependencies
    strict-ssl tag tag-version-prefix timing umask unicode update-notifier workspaces-update yes
    """,
    "prefix",
)
YARN_CLASSIC = _schema(
    "registry",
    """
    child-concurrency disable-self-update-check ignore-engines ignore-optional ignore-platform ignore-scripts
    init-author-email init-author-name init-author-url init-license init-version lastUpdateCheck network-concurrency
    network-timeout save-exact save-prefix strict-ssl version-commit-hooks version-git-message version-git-sign
    version-git-tag version-sign-git-tag version-tag-prefix workspaces-experimental workspaces-nohoist-experimental
    yarn-offline-mirror-pruning
    """,
)
YARN = _schema(
    "npmRegistryServer npmPublishRegistry npmAuditRegistry unsafeHttpWhitelist",
    """
    cacheMigrationMode checksumBehavior compressionLevel defaultLanguageName defaultProtocol
    defaultSemverRangePrefix deferredVersionFolder enableAbsoluteVirtuals enableColors enableConstraintsChecks
    enableGlobalCache enableHardenedMode enableHyperlinks enableImmutableCache enableImmutableInstalls
    enableInlineBuilds enableInlineHunks enableMessageNames enableMirror enableNetwork enableOfflineMode
    enableProgressBars enableScripts enableStrictSsl enableTelemetry enableTimers enableTips enableTransparentWorkspaces
    httpRetry httpTimeout logFilters networkConcurrency nmHoistingLimits nmMode
    nmSelfReferences nodeLinker npmMinimalAgeGate npmPreapprovedPackages npmPublishAccess pnpEnableEsmLoader
    pnpFallbackMode pnpMode preferAggregateCacheInfo preferDeferredVersions preferInteractive preferReuse
    preferTruncatedLines progressBarStyle supportedArchitectures taskPoolConcurrency taskPoolMode telemetryInterval
    tsEnableAutoTypes winLinkType
    """,
    npmScopes={_ANY: _schema("npmRegistryServer npmPublishRegistry", "npmPublishAccess")},
    npmRegistries={_ANY: _schema("", "npmAlwaysAuth")},
)  # fmt: skip
CARGO: Schema = {
    "alias": {_ANY: OPTION},
    "build": _schema(
        "",
        """
        build-dir dep-info-basedir incremental jobs pipelining rustc rustc-wrapper rustc-workspace-wrapper rustdoc
        rustdocflags rustflags target target-dir warnings
        """,
    ),
    "cache": _schema("", "auto-clean-frequency"),
    "cargo-new": _schema("", "vcs"),
    "future-incompat-report": _schema("", "frequency"),
    "http": _schema("", "cainfo check-revoke debug low-speed-limit multiplexing ssl-version timeout user-agent"),
    "net": {**_schema("", "git-fetch-with-cli offline retry"), "ssh": _schema("", "known-hosts")},
    "profile": {_ANY: OPTION},
    "registries": {_ANY: _schema("index", "protocol")},
    "registry": _schema("index", "default"),
    "resolver": _schema("", "feature-unification incompatible-publish-age incompatible-rust-versions lockfile-path"),
    "source": {_ANY: _schema("registry git", "branch directory local-registry replace-with rev tag")},
    "target": {_ANY: _schema("", "ar linker runner rustdocflags rustflags")},
    "term": _schema("", "color hyperlinks progress quiet unicode verbose"),
    "unstable": {_ANY: OPTION},
}  # fmt: skip
_POLICY = _schema("", "enabled updatePolicy checksumPolicy")
_REPOSITORY = {**_schema("url", "id name layout"), "releases": _POLICY, "snapshots": _POLICY, _NEEDED: "url"}
_ACTIVATION: Schema = {
    **_schema("", "activeByDefault jdk"),
    "os": _schema("", "name family arch version"),
    "property": _schema("", "name value"),
    "file": _schema("", "exists missing"),
}
MAVEN: Schema = {
    **_schema("", "offline interactiveMode usePluginRegistry"),
    "pluginGroups": _schema("", "pluginGroup"),
    "mirrors": {"mirror": {**_schema("url", "id name mirrorOf layout mirrorOfLayouts blocked"), _NEEDED: "url"}},
    "activeProfiles": _schema("", "activeProfile"),
    "profiles": {
        "profile": {
            **_schema("", "id"),
            "activation": _ACTIVATION,
            "repositories": {"repository": _REPOSITORY},
            "pluginRepositories": {"pluginRepository": _REPOSITORY},
        }
    },
}
GO = _schema(
    "GOPROXY GOPRIVATE GONOPROXY GONOSUMDB GOSUMDB GOINSECURE",
    """
    CGO_CFLAGS CGO_CPPFLAGS CGO_CXXFLAGS CGO_ENABLED CGO_FFLAGS CGO_LDFLAGS GO111MODULE GO386 GOAMD64 GOARCH GOARM
    GOARM64 GODEBUG GOEXPERIMENT GOFIPS140 GOFLAGS GOMIPS GOMIPS64 GOOS GOPPC64 GORISCV64 GOTOOLCHAIN GOVCS GOWASM
    GOWORK
    """,
    "GOPATH GOMODCACHE",
)  # fmt: skip

# Version controls: who the author of a commit is, and the commands that a person has given themselves.
MERCURIAL: Schema = {
    "ui": _schema("", "username merge tweakdefaults verbose quiet"),
    **{name: {_ANY: OPTION} for name in ("alias", "diff", "experimental", "extensions", "phases", "revsetalias")},
}
JJ: Schema = {
    "user": _schema("", "name email"),
    **{name: {_ANY: OPTION} for name in ("aliases", "revset-aliases", "revsets", "template-aliases", "templates")},
}


class Malformed(Exception):
    """A settings file that its own manager would not read, or nobody should; the message says why."""


class Sieve:
    """Lets through what may be seen of one file, and remembers what was left out."""

    def __init__(self, homes: Sequence[str]) -> None:
        self.dropped: dict[str, None] = {}
        self._homes = homes
        self._left = _MOST_VALUES

    def table(self, table: Mapping[Any, Any], kinds: Schema, within: str = "") -> dict[str, Any] | None:
        """Return what may be seen of a table, or None where that is nothing."""
        shown: dict[str, Any] = {}
        for name, value in table.items():
            whole = f"{within}.{name}" if within else f"{name}"
            kind = self.kind_of(f"{name}", kinds)
            if kind is None:
                self.drop(whole)
            elif (kept := self.value(whole, value, kind)) is not None:
                shown[f"{name}"] = kept
        needed = kinds.get(_NEEDED)
        if needed is not None and needed not in shown:
            self.drop(within)
            return None
        return shown or None

    def kind_of(self, name: str, kinds: Schema) -> str | Schema | None:
        """Return what a setting of this name holds; None: it is not to be seen."""
        if name in kinds and name not in (_ANY, _NEEDED):
            return kinds[name]
        return None if looks_secret(name) or may_hold_secret(name) else kinds.get(_ANY)

    def value(self, name: str, value: Any, kind: str | Schema) -> Any:
        """Return what may be seen of a setting, or None."""
        self._left -= 1
        if self._left < 0:
            raise Malformed("there are too many settings in it")
        if isinstance(value, list):
            # They may be the words of a command line: what announces a secret stands before it.
            line = " ".join(item for item in value if isinstance(item, str))
            if kind == OPTION and self._text(name, line, OPTION) is None:
                self.drop(name)
                return None
            items = [self.value(name, item, kind) for item in value]
            return [item for item in items if item is not None] or None
        if isinstance(value, dict) and kind not in (ADDRESS, PLACE):
            return self.table(value, {_ANY: OPTION} if isinstance(kind, str) else kind, name)
        if isinstance(value, str) and isinstance(kind, str):
            shown: Any = self._text(name, value, kind)
        else:
            shown = value if kind == OPTION else None  # a number, a switch, a date
        if shown is None:
            self.drop(name)
        return shown

    def drop(self, name: str) -> None:
        """Remember that a setting was left out; its name can hold a secret, too."""
        self.dropped.setdefault("a setting with a secret in its name" if may_hold_secret(name) else name)

    def _text(self, name: str, text: str, kind: str) -> str | None:
        if kind == ADDRESS:
            return self._addresses(name, text)
        if kind == PLACE:
            return None if may_hold_secret(text) else text
        return None if announces_secret(text) or any(paths_below(text, self._homes)) else text

    def _addresses(self, name: str, text: str) -> str | None:
        """Return addresses, with what stands between them, less users and passwords.

        A manager would use its own in place of an address that is left out, and fetch a stranger's package of the
        same name. So a password is cut off where that can be done, and the address stays.
        """
        pieces: list[str] = []
        for piece in _pieces(text):
            if piece in _BETWEEN:
                shown: str | None = piece
            else:
                shown = None if any(paths_below(piece, self._homes)) else without_credentials(piece)
            if shown != piece:
                self.drop(name if shown is None else f"{name}: user and password")
            if shown is not None:
                pieces.append(shown)
            elif pieces:
                pieces.pop()
        return "".join(pieces).strip(_BETWEEN) or None


def _pieces(text: str) -> Iterator[str]:
    """Split a text at blanks, commas and bars, and yield these, too."""
    piece = ""
    for letter in text:
        if letter in _BETWEEN:
            yield from filter(None, (piece, letter))
            piece = ""
        else:
            piece += letter
    if piece:
        yield piece


# Read each package manager's settings format, and write what may be seen in it again.
#
# Parsers are loaded when there is something to parse: they take longer than a command to start.

_PLAIN = LETTERS | DIGITS | frozenset("-_.")
_SPECIAL = frozenset("\"'\\;#")  # has a meaning in npm's and yarn's values


def shown_of(manager: str, data: bytes, homes: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return what a command may see of a manager's settings, in its own format, and the names of what was left out.

    `homes` are the names of the person's home; the first is what `~` means.
    """
    sieve = Sieve(homes)
    try:
        shown = _READERS[manager](data.decode("utf-8-sig"), sieve)
    except (ValueError, SyntaxError) as error:  # the second is what an XML parser raises
        raise Malformed(f"it can't be read ({type(error).__name__})") from error
    except RecursionError as error:
        raise Malformed("it is nested too deeply") from error
    return shown, tuple(sieve.dropped)


def _mercurial(text: str, sieve: Sieve) -> str:
    """Read sections that may come again; lines as `%include` are left out, because they name other files."""
    settings = ""
    for line in text.splitlines(keepends=True):
        if line.startswith("%"):
            sieve.drop(line.strip())
        else:
            settings += line
    return _sections(settings, MERCURIAL, str, sieve, delimiters=("=",), strict=False)


def _sections(text: str, kinds: Schema, named: Callable[[str], str], sieve: Sieve, **rules: Any) -> str:
    import configparser
    import io

    parser, shown = configparser.RawConfigParser(**rules), configparser.RawConfigParser()
    parser.optionxform = shown.optionxform = str  # type: ignore[assignment]
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise Malformed(f"it can't be read ({type(error).__name__})") from error
    for section in parser.sections():
        within = kinds.get(section, kinds.get(_ANY))
        if within is None or isinstance(within, str) or not _PLAIN.issuperset(section):
            sieve.drop(section)
        elif kept := sieve.table({named(name): value for name, value in parser.items(section)}, within, section):
            shown[section] = kept
    written = io.StringIO()
    shown.write(written)
    return written.getvalue()


def _toml(text: str, kinds: Schema, sieve: Sieve) -> str:
    import tomllib

    shown = sieve.table(tomllib.loads(text), kinds)
    if not shown:
        return ""
    import tomlkit

    return tomlkit.dumps(shown)


def _yarn(text: str, sieve: Sieve) -> str:
    import yaml

    try:
        table = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Malformed(f"it can't be read ({type(error).__name__})") from error
    if table is None:
        return ""
    if not isinstance(table, dict):
        raise Malformed("it is not a table of settings")
    shown = sieve.table(table, YARN)
    return yaml.safe_dump(shown, allow_unicode=True) if shown else ""


def _npm(text: str, sieve: Sieve) -> str:
    """Read lines `name = value`, where a name that ends with `[]` may come several times."""
    written = ""
    for line in _lines(text, "#;"):
        if line.startswith("["):
            break  # npm knows no sections: what follows is not a setting
        name, equals, value = line.partition("=")
        name = _unquoted(name)
        shown = _registry_setting(name, _unquoted(value) if equals else "true", NPM, sieve)
        written += "" if shown is None else f"{name}={shown}\n"
    return written


def _yarn_classic(text: str, sieve: Sieve) -> str:
    """Read lines `name value`, each of which may be quoted."""
    written = ""
    for line in _lines(text, "#"):
        quote = line[0] if line[0] in "\"'" else ""
        name, _, value = line[1:].partition(quote) if quote else line.partition(" ")
        name = name.removesuffix(":")
        shown = _registry_setting(name, _unquoted(value.removeprefix(":")), YARN_CLASSIC, sieve)
        if shown is not None:
            is_word = shown in ("true", "false") or shown.isdigit()
            written += f'"{name}" {shown}\n' if is_word else f'"{name}" "{shown}"\n'
    return written


def _registry_setting(name: str, value: str, kinds: Schema, sieve: Sieve) -> str | None:
    """Return what may be seen of a setting of npm's or yarn's; each scope can have a registry of its own."""
    scope = name[1:].removesuffix(":registry") if name.startswith("@") and name.endswith(":registry") else ""
    kind = ADDRESS if scope and _PLAIN.issuperset(scope) else sieve.kind_of(name.removesuffix("[]"), kinds)
    if kind is None or not _SPECIAL.isdisjoint(value):
        sieve.drop(name)
        return None
    shown = sieve.value(name, value, kind)
    return None if shown is None else f"{shown}"


def _go(text: str, sieve: Sieve) -> str:
    table = dict(line.partition("=")[::2] for line in _lines(text, "#"))
    shown = sieve.table(table, GO) or {}
    return "".join(f"{name}={value}\n" for name, value in shown.items())


def _maven(text: str, sieve: Sieve) -> str:
    from xml.etree import ElementTree as ET

    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise Malformed("it declares a document type, which settings don't need")
    root = ET.fromstring(text)  # noqa: S314 - nothing is declared in it, and it is the person's
    shown = _element(root, MAVEN, sieve, "")
    if shown is None:
        return ""
    ET.indent(shown)
    return ET.tostring(shown, encoding="unicode") + "\n"


def _element(element: Element, kinds: Schema, sieve: Sieve, within: str) -> Element | None:
    """Return what may be seen of an element: without attributes, and without a prefix, which Maven does not read."""
    from xml.etree.ElementTree import Element, SubElement

    shown = Element(element.tag.rpartition("}")[2])
    for child in element:
        tag = child.tag.rpartition("}")[2]
        whole = f"{within}.{tag}" if within else tag
        kind = sieve.kind_of(tag, kinds)
        if kind is None:
            sieve.drop(whole)
        elif isinstance(kind, str):
            value = sieve.value(whole, (child.text or "").strip(), kind)
            if value is not None:
                SubElement(shown, tag).text = value
        elif (inner := _element(child, kind, sieve, whole)) is not None:
            shown.append(inner)
    needed = kinds.get(_NEEDED)
    if len(shown) == 0 or (isinstance(needed, str) and shown.find(needed) is None):
        return None
    return shown


def _lines(text: str, comments: str) -> Iterator[str]:
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in comments:
            yield stripped


def _unquoted(text: str) -> str:
    text = text.strip()
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if is_quoted else text


_READERS: Mapping[str, Any] = {
    "pip": lambda text, sieve: _sections(
        text, {_ANY: PIP}, lambda name: name.lower().removeprefix("--").replace("_", "-"), sieve
    ),
    "npm": _npm, "yarn": _yarn, "yarn classic": _yarn_classic, "maven": _maven, "go": _go,
    "uv": lambda text, sieve: _toml(text, UV, sieve), "cargo": lambda text, sieve: _toml(text, CARGO, sieve),
    "mercurial": _mercurial, "jj": lambda text, sieve: _toml(text, JJ, sieve),
}  # fmt: skip

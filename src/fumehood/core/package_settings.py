"""What a command may see of the settings of package managers, hg and jj: addresses without credentials, plain options.

Each manager has a table of its settings that are not secret. All other settings are left out, and so is a value that
looks like a secret (`core/credentials.py`) or names a file of the home.
"""

from __future__ import annotations

from fumehood.core.credentials import command_may_hold_secret, home_paths_in, may_hold_secret, without_credentials
from fumehood.core.environment import looks_secret
from fumehood.core.value import DIGITS, LETTERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any
    from xml.etree.ElementTree import Element

    Schema = Mapping[str, "str | Schema"]

# The kinds of settings: an address or host, or several; an option; a directory that a program makes if it is missing.
ADDRESS, OPTION, DIRECTORY = "address", "option", "directory"
_ANY_NAME = "*"  # in a schema: every other name
_REQUIRED = "!"  # in a schema: the setting without which the rest of its table is useless
_MAX_VALUES = 10_000  # in YAML, a few references can make a huge table
_LIST_SEPARATORS = " \t\r\n,|"


def _schema(addresses: str = "", options: str = "", directories: str = "", **tables: Schema) -> Schema:
    names_by_kind = {ADDRESS: addresses, OPTION: options, DIRECTORY: directories}
    return {name: kind for kind, names in names_by_kind.items() for name in names.split()} | tables


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
        **_schema("url", "authenticate cache-control default explicit format ignore-error-codes name"), _REQUIRED: "url"
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
# Registries of scopes, `@scope:registry`, have a rule of their own. Some settings are pnpm's.
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
    npmScopes={_ANY_NAME: _schema("npmRegistryServer npmPublishRegistry", "npmPublishAccess")},
    npmRegistries={_ANY_NAME: _schema("", "npmAlwaysAuth")},
)  # fmt: skip
CARGO: Schema = {
    "alias": {_ANY_NAME: OPTION},
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
    "profile": {_ANY_NAME: OPTION},
    "registries": {_ANY_NAME: _schema("index", "protocol")},
    "registry": _schema("index", "default"),
    "resolver": _schema("", "feature-unification incompatible-publish-age incompatible-rust-versions lockfile-path"),
    "source": {_ANY_NAME: _schema("registry git", "branch directory local-registry replace-with rev tag")},
    "target": {_ANY_NAME: _schema("", "ar linker runner rustdocflags rustflags")},
    "term": _schema("", "color hyperlinks progress quiet unicode verbose"),
    "unstable": {_ANY_NAME: OPTION},
}  # fmt: skip
_POLICY = _schema("", "enabled updatePolicy checksumPolicy")
_REPOSITORY = {**_schema("url", "id name layout"), "releases": _POLICY, "snapshots": _POLICY, _REQUIRED: "url"}
_ACTIVATION: Schema = {
    **_schema("", "activeByDefault jdk"),
    "os": _schema("", "name family arch version"),
    "property": _schema("", "name value"),
    "file": _schema("", "exists missing"),
}
MAVEN: Schema = {
    **_schema("", "offline interactiveMode usePluginRegistry"),
    "pluginGroups": _schema("", "pluginGroup"),
    "mirrors": {"mirror": {**_schema("url", "id name mirrorOf layout mirrorOfLayouts blocked"), _REQUIRED: "url"}},
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

# Version controls: the author of commits, and the commands that a person has defined.
MERCURIAL: Schema = {
    "ui": _schema("", "username merge tweakdefaults verbose quiet"),
    **{name: {_ANY_NAME: OPTION} for name in ("alias", "diff", "experimental", "extensions", "phases", "revsetalias")},
}
JJ: Schema = {
    "user": _schema("", "name email"),
    **{name: {_ANY_NAME: OPTION} for name in ("aliases", "revset-aliases", "revsets", "template-aliases", "templates")},
}


class Malformed(Exception):
    """A settings file that its own manager would not read, or nobody should; the message says why."""


def _unreadable(error: Exception) -> Malformed:
    return Malformed(f"it can't be read ({type(error).__name__})")


class SettingsFilter:
    """Lets through what a command may see of one file; `dropped` has the names of the settings that it left out."""

    def __init__(self, homes: Sequence[str]) -> None:
        self.dropped: dict[str, None] = {}
        self._homes = homes
        self._values_left = _MAX_VALUES

    def table(self, table: Mapping[Any, Any], schema: Schema, table_name: str = "") -> dict[str, Any] | None:
        """Return what may be seen of a table, or None if that is nothing."""
        visible: dict[str, Any] = {}
        for name, value in table.items():
            full_name = f"{table_name}.{name}" if table_name else f"{name}"
            kind = self.kind_of(f"{name}", schema)
            if kind is None:
                self.drop(full_name)
            elif (visible_value := self.value(full_name, value, kind)) is not None:
                visible[f"{name}"] = visible_value
        required = schema.get(_REQUIRED)
        if required is not None and required not in visible:
            self.drop(table_name)
            return None
        return visible or None

    def kind_of(self, name: str, schema: Schema) -> str | Schema | None:
        """Return the kind of a setting, or the schema of a table; None if it must not be seen."""
        if name in schema and name not in (_ANY_NAME, _REQUIRED):
            return schema[name]
        return None if looks_secret(name) or may_hold_secret(name) else schema.get(_ANY_NAME)

    def value(self, name: str, value: Any, kind: str | Schema) -> Any:
        """Return what may be seen of a setting's value, or None."""
        self._values_left -= 1
        if self._values_left < 0:
            raise Malformed("there are too many settings in it")
        if isinstance(value, list):
            # The items may be the words of a command line, in which an option comes before its secret.
            line = " ".join(item for item in value if isinstance(item, str))
            if kind == OPTION and self._text(name, line, OPTION) is None:
                self.drop(name)
                return None
            items = [self.value(name, item, kind) for item in value]
            return [item for item in items if item is not None] or None
        if isinstance(value, dict) and kind not in (ADDRESS, DIRECTORY):
            return self.table(value, {_ANY_NAME: OPTION} if isinstance(kind, str) else kind, name)
        if isinstance(value, str) and isinstance(kind, str):
            visible: Any = self._text(name, value, kind)
        else:
            visible = value if kind == OPTION else None  # a number, a switch, a date
        if visible is None:
            self.drop(name)
        return visible

    def drop(self, name: str) -> None:
        """Remember that a setting was left out; its name can hold a secret, too."""
        self.dropped.setdefault("a setting with a secret in its name" if may_hold_secret(name) else name)

    def _text(self, name: str, text: str, kind: str) -> str | None:
        if kind == ADDRESS:
            return self._addresses(name, text)
        if kind == DIRECTORY:
            return None if may_hold_secret(text) else text
        return None if command_may_hold_secret(text) or any(home_paths_in(text, self._homes)) else text

    def _addresses(self, name: str, text: str) -> str | None:
        """Return a list of addresses, with its separators, without users and passwords.

        If an address were left out, a manager would use its default instead, and fetch a stranger's package of the
        same name. So if it is possible, only the password is cut off, and the address stays.
        """
        pieces: list[str] = []
        for piece in _with_separators(text):
            if piece in _LIST_SEPARATORS:
                visible: str | None = piece
            else:
                visible = None if any(home_paths_in(piece, self._homes)) else without_credentials(piece)
            if visible != piece:
                self.drop(name if visible is None else f"{name}: user and password")
            if visible is not None:
                pieces.append(visible)
            elif pieces:
                pieces.pop()
        return "".join(pieces).strip(_LIST_SEPARATORS) or None


def _with_separators(text: str) -> Iterator[str]:
    """Yield the items of a list, and the separators between them."""
    item = ""
    for letter in text:
        if letter in _LIST_SEPARATORS:
            yield from filter(None, (item, letter))
            item = ""
        else:
            item += letter
    if item:
        yield item


# Each package manager's format: read the settings, and write what may be seen in the same format.
#
# Parsers are imported only if there is something to parse: importing one takes longer than a command's start.

_PLAIN_LETTERS = LETTERS | DIGITS | frozenset("-_.")
_SPECIAL_LETTERS = frozenset("\"'\\;#")  # have a meaning in values of npm and yarn


def visible_settings(manager: str, data: bytes, homes: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return what a command may see of a manager's settings, in its own format, and the names of what was left out.

    `homes` are the names of the person's home; the first is what `~` means.
    """
    settings_filter = SettingsFilter(homes)
    try:
        visible = _FORMATS[manager](data.decode("utf-8-sig"), settings_filter)
    except (ValueError, SyntaxError) as error:  # an XML parser raises the second
        raise _unreadable(error) from error
    except RecursionError as error:
        raise Malformed("it is nested too deeply") from error
    return visible, tuple(settings_filter.dropped)


def _mercurial(text: str, settings_filter: SettingsFilter) -> str:
    """Filter sections that may be repeated; lines like `%include` are left out, because they name other files."""
    settings = ""
    for line in text.splitlines(keepends=True):
        if line.startswith("%"):
            settings_filter.drop(line.strip())
        else:
            settings += line
    return _sections(settings, MERCURIAL, str, settings_filter, delimiters=("=",), strict=False)


def _sections(
    text: str, schema: Schema, normalized_name: Callable[[str], str], settings_filter: SettingsFilter,
    **parser_options: Any,
) -> str:  # fmt: skip
    import configparser
    import io

    parser, visible = configparser.RawConfigParser(**parser_options), configparser.RawConfigParser()
    parser.optionxform = visible.optionxform = str  # type: ignore[assignment]
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise _unreadable(error) from error
    for section in parser.sections():
        section_schema = schema.get(section, schema.get(_ANY_NAME))
        if section_schema is None or isinstance(section_schema, str) or not _PLAIN_LETTERS.issuperset(section):
            settings_filter.drop(section)
            continue
        table = {normalized_name(name): value for name, value in parser.items(section)}
        if visible_table := settings_filter.table(table, section_schema, section):
            visible[section] = visible_table
    written = io.StringIO()
    visible.write(written)
    return written.getvalue()


def _pip(text: str, settings_filter: SettingsFilter) -> str:
    return _sections(text, {_ANY_NAME: PIP}, _pip_name, settings_filter)


def _pip_name(name: str) -> str:
    return name.lower().removeprefix("--").replace("_", "-")


def _toml(text: str, schema: Schema, settings_filter: SettingsFilter) -> str:
    import tomllib

    visible = settings_filter.table(tomllib.loads(text), schema)
    if not visible:
        return ""
    import tomlkit

    return tomlkit.dumps(visible)


def _yarn(text: str, settings_filter: SettingsFilter) -> str:
    import yaml

    try:
        table = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise _unreadable(error) from error
    if table is None:
        return ""
    if not isinstance(table, dict):
        raise Malformed("it is not a table of settings")
    visible = settings_filter.table(table, YARN)
    return yaml.safe_dump(visible, allow_unicode=True) if visible else ""


def _npm(text: str, settings_filter: SettingsFilter) -> str:
    """Filter lines `name = value`; a name that ends with `[]` may be repeated."""
    written = ""
    for line in _lines(text, "#;"):
        if line.startswith("["):
            break  # npm knows no sections: what follows is not a setting
        name, equals, value = line.partition("=")
        name = _unquoted(name)
        visible = _registry_setting(name, _unquoted(value) if equals else "true", NPM, settings_filter)
        written += "" if visible is None else f"{name}={visible}\n"
    return written


def _yarn_classic(text: str, settings_filter: SettingsFilter) -> str:
    """Filter lines `name value`; both may be quoted."""
    written = ""
    for line in _lines(text, "#"):
        quote = line[0] if line[0] in "\"'" else ""
        name, _, value = line[1:].partition(quote) if quote else line.partition(" ")
        name = name.removesuffix(":")
        visible = _registry_setting(name, _unquoted(value.removeprefix(":")), YARN_CLASSIC, settings_filter)
        if visible is not None:
            is_bare = visible in ("true", "false") or visible.isdigit()
            written += f'"{name}" {visible}\n' if is_bare else f'"{name}" "{visible}"\n'
    return written


def _registry_setting(name: str, value: str, schema: Schema, settings_filter: SettingsFilter) -> str | None:
    """Return what may be seen of a setting of npm or yarn; each scope can have a registry of its own."""
    scope = name[1:].removesuffix(":registry") if name.startswith("@") and name.endswith(":registry") else ""
    is_registry = scope and _PLAIN_LETTERS.issuperset(scope)
    kind = ADDRESS if is_registry else settings_filter.kind_of(name.removesuffix("[]"), schema)
    if kind is None or not _SPECIAL_LETTERS.isdisjoint(value):
        settings_filter.drop(name)
        return None
    visible = settings_filter.value(name, value, kind)
    return None if visible is None else f"{visible}"


def _go(text: str, settings_filter: SettingsFilter) -> str:
    table = dict(line.partition("=")[::2] for line in _lines(text, "#"))
    visible = settings_filter.table(table, GO) or {}
    return "".join(f"{name}={value}\n" for name, value in visible.items())


def _maven(text: str, settings_filter: SettingsFilter) -> str:
    from xml.etree import ElementTree as ET

    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise Malformed("it declares a document type, which settings don't need")
    root = ET.fromstring(text)  # noqa: S314 - nothing is declared in it, and it is the person's
    visible = _element(root, MAVEN, settings_filter, "")
    if visible is None:
        return ""
    ET.indent(visible)
    return ET.tostring(visible, encoding="unicode") + "\n"


def _element(element: Element, schema: Schema, settings_filter: SettingsFilter, parent_name: str) -> Element | None:
    """Return what may be seen of an element, without attributes, and without prefixes, which Maven does not read."""
    from xml.etree.ElementTree import Element, SubElement

    visible = Element(element.tag.rpartition("}")[2])
    for child in element:
        tag = child.tag.rpartition("}")[2]
        full_name = f"{parent_name}.{tag}" if parent_name else tag
        kind = settings_filter.kind_of(tag, schema)
        if kind is None:
            settings_filter.drop(full_name)
        elif isinstance(kind, str):
            value = settings_filter.value(full_name, (child.text or "").strip(), kind)
            if value is not None:
                SubElement(visible, tag).text = value
        elif (visible_child := _element(child, kind, settings_filter, full_name)) is not None:
            visible.append(visible_child)
    required = schema.get(_REQUIRED)
    if len(visible) == 0 or (isinstance(required, str) and visible.find(required) is None):
        return None
    return visible


def _lines(text: str, comment_signs: str) -> Iterator[str]:
    """Yield the lines that are neither empty nor comments."""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in comment_signs:
            yield stripped


def _unquoted(text: str) -> str:
    text = text.strip()
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if is_quoted else text


_FORMATS: Mapping[str, Callable[[str, SettingsFilter], str]] = {
    "pip": _pip, "npm": _npm, "yarn": _yarn, "yarn classic": _yarn_classic, "maven": _maven, "go": _go,
    "mercurial": _mercurial,
    "uv": lambda text, settings_filter: _toml(text, UV, settings_filter),
    "cargo": lambda text, settings_filter: _toml(text, CARGO, settings_filter),
    "jj": lambda text, settings_filter: _toml(text, JJ, settings_filter),
}  # fmt: skip

"""What a command may see of package managers' settings: addresses without credentials, and plain options.

Each manager has a table of settings that are known to be no secret; the rest is left out, and so is what has a secret
for a value or names a file in the home.
"""

from __future__ import annotations

from fumehood.core.environment import looks_secret
from fumehood.core.setting_values import announces_secret, may_hold_secret, paths_below, without_credentials

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    Schema = Mapping[str, "str | Schema"]

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
    "http": _schema(
        "", "cainfo check-revoke debug low-speed-limit multiplexing ssl-version timeout user-agent"
    ),
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
            shown = piece if piece in _BETWEEN else self._address(piece)
            if shown != piece:
                self.drop(name if shown is None else f"{name}: user and password")
            if shown is not None:
                pieces.append(shown)
            elif pieces:
                pieces.pop()
        return "".join(pieces).strip(_BETWEEN) or None

    def _address(self, piece: str) -> str | None:
        return None if any(paths_below(piece, self._homes)) else without_credentials(piece)


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

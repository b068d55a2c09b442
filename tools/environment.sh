# Sourced with fumehood_here set to the checkout and fumehood_set to the name of a lock in requirements/: sets fumehood_env
# to the virtual environment that has those packages, made if needed (tools/environment.py).

case ${XDG_CACHE_HOME-} in
    /*) fumehood_cache=$XDG_CACHE_HOME/fumehood ;;
    *) fumehood_cache=${HOME-}/.cache/fumehood ;;
esac
fumehood_mark=$fumehood_cache/checkouts$fumehood_here/.$fumehood_set
fumehood_env=
# To root with somebody else's HOME, tools/environment.py says which cache is meant.
if [ -r "$fumehood_mark" ] && { [ -O "${HOME-}" ] || [ ! -O / ]; }; then
    { IFS= read -r fumehood_env && IFS= read -r fumehood_asked; } <"$fumehood_mark" || fumehood_env=
fi
if [ -n "$fumehood_env" ]; then
    fumehood_env=$fumehood_cache/$fumehood_env
    # Someone else's environment is never executed: $HOME may be another user's under sudo.
    if [ "$fumehood_asked" = "${FUMEHOOD_PYTHON-}" ] && [ -O "$fumehood_env" ] && [ -x "$fumehood_env/bin/python" ]; then
        for fumehood_input in "requirements/$fumehood_set.txt" tools/environment.py; do
            # Not "newer than": a file put back with an older time has changed too.
            if [ "$fumehood_here/$fumehood_input" -nt "$fumehood_env/made-from/${fumehood_input##*/}" ] ||
                [ "$fumehood_here/$fumehood_input" -ot "$fumehood_env/made-from/${fumehood_input##*/}" ]; then
                fumehood_env=
                break
            fi
        done
    else
        fumehood_env=
    fi
fi
[ -n "$fumehood_env" ] || fumehood_env=$(
    # Find a Python that can carry Fumehood, or say in one line what to install.
    probe='
import os, sys
version = "%d.%d" % sys.version_info[:2]
if sys.version_info < (3, 11):
    sys.exit(print("is Python", version))
for module in sys.argv[1:]:
    try:
        __import__(module)
    except ImportError:
        sys.exit(print("lacks", module, version))
# The interpreter itself: not a shim that starts it slowly, nor an activated environment that may go away.
print("good", os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
'
    modules="venv ssl sqlite3 ctypes"
    command -v uv >/dev/null || modules="$modules ensurepip"
    lacking=
    # The system's own before a version manager's: it is built with profiles, a tenth quicker here, and it stays.
    for python in "${FUMEHOOD_PYTHON-}" /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11 /usr/local/bin/python3; do
        [ -n "$python" ] || continue
        # shellcheck disable=SC2086 # several words
        answer=$("$python" -I -c "$probe" $modules 2>/dev/null </dev/null) || answer=
        case $answer in
            good\ *) exec "${answer#good }" -I -B "$fumehood_here/tools/environment.py" "$fumehood_here" "$fumehood_set" </dev/null ;;
            lacks\ *) lacking=${lacking:-${answer#lacks }} ;;
        esac
        if [ "$python" = "${FUMEHOOD_PYTHON-}" ]; then
            echo "fumehood: FUMEHOOD_PYTHON=$python can't be used: it ${answer:-does not run}; 3.11 or newer is needed" >&2
            exit 125
        fi
    done
    # Debian packs ensurepip for each version apart, and older releases need a version named.
    version=${lacking#* }
    [ -n "$version" ] || ! command -v python3 >/dev/null || version=3.11
    while read -r manager install; do
        ! command -v "$manager" >/dev/null || break
    done <<PACKAGES
apt-get apt install python${version:-3}-venv
dnf dnf install python3.12
pacman pacman -S python
zypper zypper install python311
apk apk add python3
PACKAGES
    [ -z "$install" ] || [ "$(id -u)" = 0 ] || install="sudo $install"
    reason="Python 3.11 or newer is needed"
    [ -z "$lacking" ] || reason="Python ${lacking#* } is here but lacks its module ${lacking% *}"
    echo "fumehood: $reason${install:+; type: $install}" >&2
)
[ -n "$fumehood_env" ]

# Sourced with fumehood_here set to the checkout: sets fumehood_env to its virtual environment, made if needed.

case ${XDG_CACHE_HOME-} in
    /*) fumehood_cache=$XDG_CACHE_HOME/fumehood ;;
    *) fumehood_cache=${HOME-}/.cache/fumehood ;;
esac
fumehood_mark=$fumehood_cache/checkouts$fumehood_here/.environment
fumehood_env=
if [ -r "$fumehood_mark" ]; then
    { IFS= read -r fumehood_env && IFS= read -r fumehood_asked; } <"$fumehood_mark" || fumehood_env=
fi
if [ -n "$fumehood_env" ]; then
    fumehood_env=$fumehood_cache/$fumehood_env
    # Someone else's environment is never executed: $HOME may be another user's under sudo.
    if [ "$fumehood_asked" = "${FUMEHOOD_PYTHON-}" ] && [ -O "$fumehood_env" ] && [ -x "$fumehood_env/bin/python" ]; then
        for fumehood_input in requirements/run.txt requirements/test.txt tools/environment.py; do
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
if [ -z "$fumehood_env" ]; then
    fumehood_python=$(sh "$fumehood_here/tools/find-python" </dev/null) &&
        fumehood_env=$("$fumehood_python" -I -B "$fumehood_here/tools/environment.py" "$fumehood_here" </dev/null)
fi
[ -n "$fumehood_env" ]

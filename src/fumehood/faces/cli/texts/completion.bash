# In ~/.bashrc: eval "$(fumehood completion bash)"
_fumehood() {
    local line cur=${COMP_WORDS[COMP_CWORD]} IFS=$'\n'
    local lines
    mapfile -t lines < <("${COMP_WORDS[0]/#\~/$HOME}" complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    [[ $cur == = ]] && cur=
    COMPREPLY=()
    compopt -o nosort 2>/dev/null
    for line in "${lines[@]:1}"; do
        line=${line%%$'\t'*}
        [[ $line == "$cur"* ]] && COMPREPLY+=("$line")
    done
    case ${lines[0]} in
        files) compopt -o filenames; COMPREPLY+=($(compgen -f -- "$cur")) ;;
        directories) compopt -o filenames; COMPREPLY+=($(compgen -d -- "$cur")) ;;
        commands) COMPREPLY+=($(compgen -c -- "$cur")) ;;
    esac
    # What a run changed is a file too; readline drops what comes twice only where it sorts.
    local -A seen=()
    lines=("${COMPREPLY[@]}") COMPREPLY=()
    for line in "${lines[@]}"; do
        [[ ${seen[$line]-} ]] || COMPREPLY+=("$line")
        seen[$line]=1
    done
}
complete -F _fumehood fumehood

#compdef fumehood
# In ~/.zshrc, after compinit: eval "$(fumehood completion zsh)"
_fumehood() {
    local -a lines described
    local line what
    lines=("${(@f)$(${~words[1]} complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    what=$lines[1]
    for line in "${(@)lines[2,-1]}"; do
        described+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done
    (( $#described )) && _describe -V fumehood described
    case $what in
        files) _files ;;
        directories) _files -/ ;;
        commands) _command_names -e ;;
    esac
}
if [[ $funcstack[1] == _fumehood ]]; then _fumehood "$@"; else compdef _fumehood fumehood; fi

# In ~/.config/fish/completions/fumehood.fish, or: fumehood completion fish | source
function __fumehood_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l lines ($words[1] complete $words[2..] 2>/dev/null)
    switch "$lines[1]"
        case files
            __fish_complete_path (commandline -ct)
        case directories
            __fish_complete_directories (commandline -ct) ''
        case commands
            __fish_complete_command
    end
    test (count $lines) -gt 1; and printf '%s\n' $lines[2..]
end
complete -c fumehood -f -a '(__fumehood_complete)'

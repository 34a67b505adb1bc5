# Completion of memctl for fish.

function __memctl_complete
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set -l program (string replace -r '^~/' "$HOME/" -- $words[1])
    set -e words[1]
    set -l answer (env _MEMCTL_COMPLETE=fish $program $words "$word" 2>/dev/null </dev/null)
    printf '%s\n' $answer[2..]
    if test "$answer[1]" = files
        __fish_complete_path "$word"
    end
end

complete --command memctl --no-files --arguments '(__memctl_complete)'

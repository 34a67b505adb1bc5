#compdef memctl
# Completion of memctl for zsh.

_memctl() {
    local -a answer values shown
    local line value meaning
    answer=("${(@f)$(
        _MEMCTL_COMPLETE=zsh "${(Q)words[1]/#\~\//$HOME/}" "${(@Q)words[2,CURRENT-1]}" \
            "${(Q)PREFIX}" 2>/dev/null </dev/null
    )}")
    for line in "${(@)answer[2,-1]}"; do
        value=${line%%$'\t'*} meaning=${line#*$'\t'}
        values+=("$value")
        shown+=("$value${meaning:+  -- $meaning}")
    done
    if (( $#values )); then
        compadd -l -d shown -a -- values
    fi
    if [[ $answer[1] == files ]]; then
        compset -P '--*='
        _files
    fi
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _memctl "$@" # from a folder of $fpath, at the first TAB
else
    compdef _memctl memctl
fi

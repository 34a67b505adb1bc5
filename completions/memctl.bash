# Completion of memctl for bash 4.4 or later.

_memctl() {
    local -a answer files
    mapfile -t answer < <(
        _MEMCTL_COMPLETE=bash "${1/#\~\//$HOME/}" "${COMP_LINE:0:COMP_POINT}" "$2" \
            2>/dev/null </dev/null
    )
    COMPREPLY=("${answer[@]:1}")
    [[ ${answer[0]-} == files ]] || return 0
    if [[ ${#COMPREPLY[@]} == 0 ]]; then
        compopt -o default
    else
        mapfile -t files < <(compgen -f -- "$2")
        COMPREPLY+=("${files[@]}")
        compopt -o filenames
    fi
}

complete -o nosort -F _memctl memctl

# fish completion of uvsadm-save

complete -c uvsadm-save -f
complete -c uvsadm-save -s n -d 'numbers, not names'

# fish completion of uvsadm-restore

complete -c uvsadm-restore -f
complete -c uvsadm-restore -l atomic -d 'all lines or none'
complete -c uvsadm-restore -s n -d 'no effect'
complete -c uvsadm-restore -s h -l help -d 'a summary'

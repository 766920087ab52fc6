# bash completion of uvsadm-restore                                     -*- shell-script -*-

_uvsadm_restore()
{
	COMPREPLY=($(compgen -W '--atomic -n -h --help' -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -F _uvsadm_restore uvsadm-restore

# bash completion of uvsadm-save                                        -*- shell-script -*-

_uvsadm_save()
{
	COMPREPLY=($(compgen -W '-n' -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -F _uvsadm_save uvsadm-save

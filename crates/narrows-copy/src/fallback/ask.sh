# Reports which tar this host has, and whether it has zstd; reads nothing from stdin.
unset TAR_OPTIONS CDPATH
tar=none xattrs=no zstd=no
if command -v tar >/dev/null 2>&1; then
  case $(LC_ALL=C tar --version 2>/dev/null </dev/null) in
    *'GNU tar'*) tar=gnu ;;
    *bsdtar*) tar=bsd ;;
    *) tar=other ;;
  esac
  if [ $tar != other ] && tar --xattrs --acls --version >/dev/null 2>&1 </dev/null; then xattrs=yes; fi
fi
command -v zstd >/dev/null 2>&1 && zstd=yes
printf '\nnarrows-tar has %s %s %s\n' $tar $xattrs $zstd

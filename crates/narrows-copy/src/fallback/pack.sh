# Packs the requested files to stdout. The client prepends definitions of:
#   pack, squeeze   tar and zstd, with their options
#   recursive       not empty if folders are copied
# and appends for each source its variables and `look`, then `go`.
set -f
# macOS would pack files of its own beside those with attributes.
export COPYFILE_DISABLE=1
home=$PWD
found=''
set --

# Expands a home folder as a login shell would.
at_home() {
  user=${at%%/*}
  case $user in
    '~'*) case ${user#?} in *[!a-zA-Z0-9_.-]*) ;; *) eval "own=$user" && at=$own${at#"$user"} ;; esac ;;
  esac
}

# $path is the source, $folder the folder that tar changes to for it. Sets $is: y found, n missing, d a folder without -r.
look() {
  is=y
  at=$path && at_home && path=$at
  at=$folder && at_home && folder=$at
  if [ ! -e "$path" ]; then
    is=n
    # With -r, a link is copied itself, wherever it leads; without, it is followed.
    [ -z "$recursive" ] || [ ! -L "$path" ] || is=y
  elif [ -z "$recursive" ] && [ -d "$path" ]; then
    is=d
  fi
  found=$found$is
  # Each -C of tar is relative to the one before.
  case $folder in /*) ;; *) folder=$home/$folder ;; esac
}

go() {
  printf '\nnarrows-tar found %s\n' "$found"
  [ $# -gt 0 ] || exit 0
  exec 5>&1
  # The exit status of both programs counts.
  status=$({
    { pack "$@" </dev/null 3>&- 5>&-; echo "t$?" >&3; } | squeeze 3>&- >&5
    echo "z$?" >&3
  } 3>&1)
  case $status in
    t0?z0) exit 0 ;;
    t1?z0) exit 11 ;;
    t2?z0) exit 12 ;;
    *) exit 13 ;;
  esac
}

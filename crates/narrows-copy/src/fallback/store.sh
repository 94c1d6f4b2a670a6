# Unpacks the archive from stdin in a folder at the target, and gives everything its name when all has arrived. The client
# prepends definitions of:
#   target          the target; $parent and $name are its two parts
#   folder          not empty if the target is a folder whether it exists or not
#   own             the name of a single file in the archive
#   work            name of a folder for this copy
#   alike           not empty: an entry that some file systems take for another one of this copy
#   contents        not empty if the target itself gets mode and times of a copied folder
#   owner           not empty if owners are preserved when this runs as root
#   devices         not empty if devices may be replaced
#   setid           not empty if files may keep set-id bits
#   fsync           not empty if everything is flushed to the disk
#   unpack, unsqueeze, pack_folders    tar and zstd, with their options
# Its messages begin with narrows-tar: after `cannot` and `lost`, which are shown, the copy continues; `fails` and `done`
# end it.
say() { printf 'narrows-tar %s\n' "$1"; }
fail() {
  say "fails $1"
  exit 1
}
one_line() { printf %s "$1" | tr '[:cntrl:]' '?'; }

# Expands a home folder as a login shell would.
at_home() {
  user=${at%%/*}
  case $user in
    '~'*) case ${user#?} in *[!a-zA-Z0-9_.-]*) ;; *) eval "home=$user" && at=$home${at#"$user"} ;; esac ;;
  esac
}
at=$target && at_home && target=$at
at=$parent && at_home && parent=$at

made='' rename=''
if [ -d "$target" ]; then
  into=$target
elif [ -e "$target" ] && [ ! -f "$target" ]; then
  fail "$(one_line "$target") is a device, fifo or socket; to write into it, narrows is needed there too"
elif [ -n "$folder" ]; then
  why=$(mkdir "$target" 2>&1) || fail "$(one_line "$why")"
  into=$target made=yes
else
  into=$parent rename=$name
  [ -d "$into" ] || fail "there is no folder $(one_line "$into")"
fi
work=$into/$work
why=$(mkdir -m 700 "$work" 2>&1) || {
  [ -z "$made" ] || rmdir "$target"
  fail "$(one_line "$why")"
}
clean() {
  [ ! -d "$work" ] || find "$work" -type d ! -perm -700 -exec chmod u+rwx {} \;
  rm -rf "$work"
  [ -z "$made" ] || rmdir "$target" 2>/dev/null
  return 0
}
trap clean EXIT
trap 'exit 1' HUP INT PIPE TERM
mkdir "$work/new" || exit 1

# Whether names that differ only in case, or in the form of an accent, are one here: then one content would replace the other.
if [ -n "$alike" ]; then
  accent=$(printf '\303\251') apart=$(printf 'e\314\201')
  true >"$work/new/Aa" 2>/dev/null
  true >"$work/new/$accent" 2>/dev/null
  if [ -e "$work/new/aA" ] || [ -e "$work/new/$apart" ]; then
    fail "the file system there takes $(one_line "$alike") for another entry of this copy, from which it differs only in case \
or in the form of its characters; rename one of them. Nothing was stored"
  fi
  rm -f "$work/new/Aa" "$work/new/$accent"
fi

# If even root cannot change owners, tar would fail at every file.
keep=-o
if [ -n "$owner" ] && [ "$(id -u)" = 0 ]; then
  : >"$work/owned"
  if chown 1:1 "$work/owned" 2>/dev/null; then keep=''; else say 'lost owner of all'; fi
fi

# The exit status of both programs counts. Data that tar leaves unread after the archive is discarded, or zstd would fail.
status=$({
  { unsqueeze 3>&-; echo "z$?" >&3; } | {
    unpack $keep -C "$work/new" 3>&- >&2
    status=$?
    echo "t$status" >&3
    [ $status -ne 0 ] || cat >/dev/null
  }
} 3>&1)
case $status in *t0*) ;; *) fail 'tar failed there, and nothing was stored' ;; esac
case $status in *z0*) ;; *) fail 'what arrived is damaged or cut short, and nothing was stored' ;; esac

# Without its owner, a set-id program would run as another user.
if [ -n "$keep" ] || [ -z "$setid" ]; then
  bits=$(find "$work/new" -type f \( -perm -4000 -o -perm -2000 \) -exec chmod ug-s {} \; -print)
  [ -z "$bits" ] || say 'lost set-id bits'
fi

# Reports an entry whose place is blocked, and leaves it out; the rest is stored.
clash() {
  say "cannot store $(one_line "${2#"$into"/}"): $3"
  [ -w "${1%/*}" ] || chmod u+rwx "${1%/*}"
  find "$1" -type d ! -perm -700 -exec chmod u+rwx {} \;
  # Its folder keeps its time.
  touch -r "${1%/*}" "$work/time"
  rm -rf "$1"
  touch -r "$work/time" "${1%/*}"
}
check() {
  for one in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    there=$2/${one##*/}
    if [ -d "$one" ] && [ ! -L "$one" ]; then
      if [ -L "$there" ]; then
        clash "$one" "$there" 'a symbolic link is in the way; remove it, or copy to where it leads'
      elif [ -d "$there" ]; then
        check "$one" "$there"
      elif [ -e "$there" ]; then
        clash "$one" "$there" 'a file of that name is in the way'
      fi
    elif [ -z "$devices" ] && [ ! -L "$there" ] && { [ -b "$there" ] || [ -c "$there" ]; } &&
      { [ -e "$one" ] || [ -L "$one" ]; }; then
      clash "$one" "$there" 'a device of that name is in the way; --devices replaces it'
    elif [ -d "$there" ] && [ ! -L "$there" ] && { [ -e "$one" ] || [ -L "$one" ]; }; then
      clash "$one" "$there" 'a folder of that name is in the way'
    fi
  done
}
merge() {
  { [ -w "$2" ] && [ -x "$2" ]; } || chmod u+rwx "$2"
  for one in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    there=$2/${one##*/}
    if [ -d "$one" ] && [ ! -L "$one" ] && [ -d "$there" ] && [ ! -L "$there" ]; then merge "$one" "$there"; fi
  done
  # Many names at once. mv reports what could not be moved, and its folder is not empty afterwards.
  find "$1/." ! -name . -prune -exec sh -c 'exec mv -f "$@" "$0"' "$2/" {} +
  rmdir "$1" || moved=
}
sync_all() { [ -z "$fsync" ] || sync -f "$1" 2>/dev/null || sync; }

[ -z "$rename" ] || [ "$rename" = "$own" ] || mv -f "$work/new/$own" "$work/new/$rename" || fail 'nothing was stored'
check "$work/new" "$into"
# Moving changes modes and times of folders; they are packed here and, at the end, unpacked over the existing folders.
if [ -n "$contents" ]; then set --; else set -- ! -name .; fi
folders=yes
(cd "$work/new" && pack_folders "$@") >"$work/folders" || folders=
exec 4<"$work/folders"
find "$work/new" -type d ! -perm -700 -exec chmod u+rwx {} \;
sync_all "$work/new"
moved=yes
merge "$work/new" "$into"
if [ -z "$moved" ]; then
  say 'cannot move all that arrived to its place'
  # Unpacking them would replace what is in the way.
  folders=
fi
made=
clean
if [ -n "$folders" ]; then unpack $keep -C "$into" <&4 >&2 || folders=; fi
[ -n "$folders" ] || say 'lost modes and times of folders'
sync_all "$into"
say 'done'

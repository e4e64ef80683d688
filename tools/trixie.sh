# Sourced by tools/setup and tools/clients, after tools/steps.sh.

# Unpacks Debian 13's packages $4... into $3, by apt with lists and cache of its own ($1: a mirror, $2: what they are
# called). Nothing of the system is changed.
unpack_trixie() {
  local mirror=$1 what=$2 place=$3 state=$3.apt option
  shift 3
  local options=()
  mkdir -p "$state"/{lists/partial,cache/archives/partial,etc/sources.list.d,etc/preferences.d,etc/apt.conf.d,debs} "$place"
  : >"$state/status"
  printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s trixie main\n' "$mirror" >"$state/etc/sources.list"
  for option in Dir::State="$state" Dir::State::lists="$state/lists" Dir::State::status="$state/status" \
    Dir::Cache="$state/cache" Dir::Etc="$state/etc" Dir::Etc::sourcelist="$state/etc/sources.list" \
    Dir::Etc::sourceparts="$state/etc/sources.list.d" APT::Sandbox::User=; do
    options+=(-o "$option")
  done
  quietly "Debian 13's package list" apt-get "${options[@]}" update
  quietly "$what" env -C "$state/debs" apt-get "${options[@]}" download "$@"
  for option in "$state"/debs/*.deb; do
    dpkg -x "$option" "$place"
  done
  rm -rf "$state"
}

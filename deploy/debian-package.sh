# shellcheck shell=bash
# Sourced by the install scripts beside it: installs one package of Debian or Ubuntu, as root, without
# starting the system service that comes with it.
set -euo pipefail

# While a policy program answers 101, packages do not start their services. One that stands there already
# and says so is left alone; any other is put aside and put back. The mark tells a leftover of an earlier
# run that was killed from a policy of the machine's owner.
policy=/usr/sbin/policy-rc.d
aside=$policy.before-tenure
mark="# written by Tenure's deploy scripts for the time of one install"

like_debian() {
  [ -r /etc/os-release ] && grep -qE '^(ID|ID_LIKE)=.*(debian|ubuntu)' /etc/os-release &&
    command -v apt-get >/dev/null 2>&1
}

clean_up() {
  if [ -e "$policy" ] && grep -qF "$mark" "$policy"; then
    rm -f "$policy"
    if [ -e "$aside" ]; then
      mv "$aside" "$policy"
    fi
  fi
  rm -f "$log"
}

denies() { # SERVICE
  local answer=0
  "$policy" "$1" start >/dev/null 2>&1 || answer=$?
  [ "$answer" -eq 101 ]
}

# install_without_service PACKAGE: returns at once when `found`, which the caller defines, says so by
# then; otherwise installs, or says why not and exits 1.
install_without_service() {
  local package=$1
  # Two installs at once would undo each other's service policy.
  exec 9>/var/lock/tenure-install-package
  flock 9
  if found; then
    exec 9>&-
    return
  fi
  echo "Installing the package $package." >&2
  log=$(mktemp)
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  if ! { [ -x "$policy" ] && denies "$package"; }; then
    if [ -e "$policy" ]; then
      mv "$policy" "$aside"
    fi
    printf '#!/bin/sh\n%s\nexit 101\n' "$mark" >"$policy"
    chmod 755 "$policy"
  fi
  export DEBIAN_FRONTEND=noninteractive
  local install=(apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$package")
  # The package lists of a fresh machine are empty or old, so they are fetched first. The lock is closed
  # for the programs started here: a daemon among them would hold it for ever.
  if ! { apt-get -qq update && "${install[@]}"; } >"$log" 2>&1 9>&-; then
    cat "$log" >&2
    echo "The package $package could not be installed (see above). By hand:" >&2
    echo "  apt-get update && apt-get install --no-install-recommends $package" >&2
    exit 1
  fi
  if ! found; then
    echo "The package $package is installed, but its program was not found." >&2
    exit 1
  fi
  echo "The package $package was installed; its system service was not started." >&2
}

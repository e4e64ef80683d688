# Numbered steps and quiet commands with progress, for the scripts of this project.
# Sourced, not run. Needs bash and $LOG, a file to keep the output of quiet commands in.

step_number=0

# step TEXT: announces the next step. Where $STEP_FILE names a file, the number of the last step is kept there, for
# scripts that go on with each other's.
step() {
  [[ -z ${STEP_FILE:-} || ! -s $STEP_FILE ]] || step_number=$(<"$STEP_FILE")
  step_number=$((step_number + 1))
  [[ -z ${STEP_FILE:-} ]] || printf '%d\n' "$step_number" >"$STEP_FILE"
  printf '[%d] %s\n' "$step_number" "$*" >&2
}

note() { printf '    %s\n' "$*" >&2; }

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# how_far SECONDS TEXT: where TEXT is ninja's "[41/90] ...", how much of the build is done and, as all steps are taken
# to be alike, how much longer it lasts after SECONDS; any other TEXT as it is.
how_far() {
  local seconds=$1 text=$2
  if [[ ! $text =~ ^\[([0-9]+)/([0-9]+)\] ]]; then
    printf '%s' "$text"
    return
  fi
  local -i finished=10#${BASH_REMATCH[1]} all=10#${BASH_REMATCH[2]} left
  printf '%d of %d steps' "$finished" "$all"
  if ((finished >= all)); then return; fi
  # The first steps and seconds tell little of the others.
  if ((seconds < 10 || finished * 20 < all)); then return; fi
  left=$((seconds * (all - finished) / finished))
  if ((left >= 90)); then
    printf ', about %d min left' $(((left + 30) / 60))
  else
    printf ', about %d s left' $((left / 10 * 10 + 10))
  fi
}

# last_line OFFSET: of what $LOG holds after OFFSET bytes, the line that says most: ninja's last step, else the last.
last_line() {
  tail -c +$(($1 + 1)) "$LOG" | tail -c 100000 | tr '\r' '\n' |
    awk '/^\[[0-9]+\/[0-9]+\] / { step = $0 } /[^[:space:]]/ { last = $0 } END { print step != "" ? step : last }'
}

quiet_pid=
progress_every=20  # seconds between two lines where there is no terminal

# Ends the quiet command that is running, when the script itself is asked to end.
end_quiet_command() {
  trap - INT TERM
  if [[ -n $quiet_pid ]]; then
    printf '\nstopping\n' >&2
    kill -TERM -- "-$quiet_pid" 2>/dev/null || true
    wait "$quiet_pid" 2>/dev/null || true
  fi
  printf 'stopped\n' >&2
  exit 130
}

# quietly TEXT COMMAND...: runs COMMAND with its output in $LOG. Shows the time that has gone by and the
# last line of output, of a build how far it is and how much longer it lasts; on one line that is rewritten on a
# terminal, as a line every 20 seconds elsewhere.
# If COMMAND fails, shows the end of its output and ends the script.
quietly() {
  local text=$1 start=$SECONDS said=0 status=0 offset last
  shift
  mkdir -p "$(dirname "$LOG")"
  printf '\n$ %s\n' "$*" >>"$LOG"
  offset=$(stat -c %s "$LOG")
  # Its own process group, so that all of it can be ended.
  set -m
  "$@" >>"$LOG" 2>&1 </dev/null &
  quiet_pid=$!
  set +m
  trap end_quiet_command INT TERM
  while kill -0 "$quiet_pid" 2>/dev/null; do
    sleep 0.5
    if [[ -t 2 ]]; then
      last=$(how_far $((SECONDS - start)) "$(last_line "$offset")" | cut -c 1-60)
      printf '\r\033[K    %s: %d s  %s' "$text" $((SECONDS - start)) "$last" >&2
    elif ((SECONDS - start - said >= progress_every)); then
      said=$((SECONDS - start))
      last=$(how_far "$said" "$(last_line "$offset")" | cut -c 1-100)
      note "$text: $said s  $last"
    fi
  done
  wait "$quiet_pid" || status=$?
  quiet_pid=
  trap - INT TERM
  [[ -t 2 ]] && printf '\r\033[K' >&2
  if ((status != 0)); then
    printf '    %s failed (exit status %d):\n' "$text" "$status" >&2
    tail -c +$((offset + 1)) "$LOG" | tail -n 40 | sed 's/^/    | /' >&2
    fail "$text failed; all of its output is in $LOG"
  fi
  note "$text: done in $((SECONDS - start)) s"
}

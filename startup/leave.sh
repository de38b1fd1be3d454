#!/bin/bash
#
# Lets a VM leave its group from the shell, without Python. Sourced by boot.sh after lib.sh; sets no
# shell options and does nothing when sourced.
#
# A group recreates a VM that powers off, so the VM leaves first: deleteInstances removes it and
# decreases the target size. The group reuses names, so the VM finds its name by its instance id.
#
# Metadata: instance/id, instance/attributes/created-by (set by the group itself).

# Longest pause between tries while the membership is not known or the group refuses.
readonly LEAVE_DELAY_MAX_TENTHS=3000

# How long a VM tries without a token and the names that the metadata server gives. Then only another
# VM, on another host, may get them.
readonly LEAVE_WITHOUT_TOKEN_TENTHS=600

readonly GROUP_RULE='^projects/[^/]+/((zones|regions)/[^/]+/instanceGroupManagers/[^/]+)$'

# leave::group INSTANCE_ID: returns when the VM may power off: 0 if it is not a member, or the group
# has accepted that it leaves; 1 if the metadata server gives no token. Waits for the group without a
# limit: the template's deadline ends the VM anyway.
leave::group() {
  local id="$1" group rc=0 self delay="$((BACKOFF > 0 ? BACKOFF : 1))"
  SILENT_UNTIL=$(($(time::tenths) + LEAVE_WITHOUT_TOKEN_TENTHS))
  group="$(leave::find_group)" || rc=$?
  if ((rc == STATUS_ABSENT)); then
    log::info leave "no managed group made this VM"
    return 0
  elif ((rc != 0)) || { [[ -z $id ]] && ! id="$(retry::until_answered metadata::get instance/id)"; }; then
    return 1
  fi
  while :; do
    rc=0
    self="$(leave::find_self "$group" "$id")" || rc=$?
    case "$rc" in
    0)
      if leave::ask_out "$group" "$self"; then
        return 0
      fi
      ;;
    "$STATUS_ABSENT")
      log::info leave "not a member of $group: already left"
      return 0
      ;;
    *)
      log::warn leave "not known whether this VM is a member of $group; waiting"
      if [[ -e $RUN_DIR/authorization ]]; then
        SILENT_UNTIL=$(($(time::tenths) + LEAVE_WITHOUT_TOKEN_TENTHS))
      elif (($(time::tenths) >= SILENT_UNTIL)); then
        return 1
      fi
      ;;
    esac
    time::sleep_tenths "$delay"
    delay=$((delay * 2 > LEAVE_DELAY_MAX_TENTHS ? LEAVE_DELAY_MAX_TENTHS : delay * 2))
  done
}

# leave::find_group: prints projects/P/zones/Z/instanceGroupManagers/NAME (or regions/R), with the
# project's id instead of its number. Returns 22 if the VM has no group, 1 if the metadata server does
# not say.
leave::find_group() {
  local group project
  group="$(retry::until_answered metadata::get instance/attributes/created-by)" || return
  if [[ ! $group =~ $GROUP_RULE ]]; then
    return "$STATUS_ABSENT"
  fi
  project="$(retry::until_answered metadata::get project/project-id)" || return
  printf 'projects/%s/%s' "$project" "${BASH_REMATCH[1]}"
}

# leave::find_self GROUP ID: prints the URL of the member with this instance id. Returns 22 if it is
# not a member or the group does not exist, 1 if that is not known.
leave::find_self() {
  local group="$1" id="$2" page="" flat self
  while :; do
    if ! http::call \
      "$COMPUTE_URL$group/listManagedInstances${page:+?pageToken=$(url::quote "$page")}" \
      "$RUN_DIR/answer" --request POST --header 'Content-Type: application/json' --data ''; then
      if [[ $HTTP_STATUS == 404 ]]; then
        return "$STATUS_ABSENT"
      fi
      log::warn leave "listManagedInstances of $group: status $HTTP_STATUS"
      return 1
    fi
    # An answer that is not JSON does not prove that the VM is absent.
    if ! grep -q '{' "$RUN_DIR/answer"; then
      log::warn leave "listManagedInstances of $group: the answer is not JSON"
      return 1
    fi
    flat="$(json::flatten <"$RUN_DIR/answer")"
    self="$(awk -F '\t' -v id="$id" '
      split($1, part, ".") == 3 && part[1] == "managedInstances" {
        if (part[3] == "id") is_self[part[2]] = ($2 "" == id "")
        if (part[3] == "instance") url[part[2]] = $2
      }
      END { for (i in is_self) if (is_self[i]) print url[i] }
    ' <<<"$flat")"
    if [[ -n $self ]]; then
      printf '%s' "$self"
      return 0
    fi
    page="$(awk -F '\t' '$1 == "nextPageToken" { print $2 }' <<<"$flat")"
    if [[ -z $page ]]; then
      return "$STATUS_ABSENT"
    fi
  done
}

# leave::ask_out GROUP SELF: asks the group to let this VM leave, with deleteInstances or, if that is
# refused, with a target size of 0 (a run's group has one VM). Returns 0 if the group accepts.
leave::ask_out() {
  local group="$1" self="$2"
  if leave::post "$group/deleteInstances" "{\"instances\": [$(json::quote "$self")]}"; then
    log::info leave "$group lets this VM go"
    return 0
  fi
  if http::is_undecided || [[ $HTTP_STATUS == 401 || $HTTP_STATUS == 404 ]]; then
    log::warn leave "deleteInstances of $group: status $HTTP_STATUS; looking again"
    return 1
  fi
  log::error leave "stuck-leaving: deleteInstances of $group was refused with status" \
    "$HTTP_STATUS; this VM needs compute.instanceGroupManagers.get and .update; trying resize"
  if leave::post "$group/resize?size=0" ''; then
    log::info leave "$group is resized to 0"
    return 0
  fi
  log::error leave "stuck-leaving: resize of $group to 0: status $HTTP_STATUS; this VM stays idle" \
    "and costs money: destroy the stack or delete the group"
  return 1
}

# leave::post PATH BODY: sends a call of the Compute API that answers with an operation. If the
# operation already has an error, the call counts as refused (status 409).
leave::post() {
  http::call "$COMPUTE_URL$1" "$RUN_DIR/answer" --request POST \
    --header 'Content-Type: application/json' --data-raw "$2" || return
  if json::flatten <"$RUN_DIR/answer" | grep -q '^error\.'; then
    HTTP_STATUS=409
    return 1
  fi
}

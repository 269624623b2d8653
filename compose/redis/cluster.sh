#!/bin/sh
# Makes a Redis Cluster of the servers that are named, or finds them one: cluster.sh HOST...
#
# Slots are given out once. Servers are introduced each time: their addresses may be others now.
set -eu
export REDISCLI_AUTH="$(cat /run/secrets/redis-password)"
slots=16384

ask() {
    host=$1
    shift
    redis-cli -h "$host" --user cluster --no-auth-warning cluster "$@"
}

place=0
for host in "$@"; do
    first=$((slots * place / $#)) place=$((place + 1))
    last=$((slots * place / $# - 1))
    own=$(ask "$host" nodes | grep myself | cut -d ' ' -f 9-)
    [ -n "$own" ] || ask "$host" addslotsrange "$first" "$last"
    # It wants an address, not a name.
    ask "$host" meet "$(getent hosts "$1" | cut -d ' ' -f 1)" 6379
done

# Whole, and each knows the others by name: that is what nodes and routers are told.
whole() {
    ask "$1" info | grep -q cluster_state:ok &&
        [ "$(ask "$1" nodes | grep -c '@[0-9]*,[a-z]')" = "$servers" ]
}

servers=$#
tries=120
for host in "$@"; do
    until whole "$host"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || { ask "$host" nodes; echo "$host is in no whole cluster"; exit 1; }
        sleep 0.5
    done
done

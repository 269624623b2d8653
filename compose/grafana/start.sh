#!/bin/sh
# Grafana with the administrator's password from a secret. Without one nobody can log in: the password
# is a random one that nobody sees.
set -eu
password=$(cat /run/secrets/grafana-password)
GF_SECURITY_ADMIN_PASSWORD=${password:-$(head -c 32 /dev/urandom | base64)}
export GF_SECURITY_ADMIN_PASSWORD
exec /run.sh

#!/usr/bin/env bash
# Builds and starts the compose file, and tests the fleet: compose/test.sh PYTHON [PYTEST ARGUMENT]...
#
# On the docker engine that answers. Where none does, KVMESH_DOCKER_TOOLS may name a folder with
# engine.sh (start, env, stop), and base_images.sh for where no registry can be reached. Grafana's
# image is of no test's need: where it cannot be had, the fleet is started without.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$1
shift
tools=${KVMESH_DOCKER_TOOLS:-../shared/docker}

answers() { timeout 20 docker compose version >/dev/null 2>&1 && timeout 20 docker info >/dev/null 2>&1; }

# The images that are not ours.
images() { grep -hoE '^(FROM|    image:) +[a-z./]+:[a-z0-9.-]+' compose/Dockerfile compose/compose.yaml | awk '{print $2}' | sort -u; }

have() { docker image inspect "$1" >/dev/null 2>&1 || timeout 120 docker pull -q "$1" >/dev/null 2>&1; }

have_base_images() {
    local image
    for image in $(images | grep -v '^grafana/'); do have "$image" || return 1; done
}

if ! answers; then
    if [[ ! -x $tools/engine.sh && ! -r $tools/engine.sh ]]; then
        echo "compose-test needs a docker engine with the compose plugin, and none answers." >&2
        [[ -n ${CI:-}${KVMESH_CI_RUN:-} ]] && exit 1
        exit 0
    fi
    bash "$tools/engine.sh" start
    trap 'bash "$tools/engine.sh" stop' EXIT
    eval "$(bash "$tools/engine.sh" env)"
fi
if ! have_base_images; then
    [[ -r $tools/base_images.sh ]] || { echo "No registry answers, and there is no $tools/base_images.sh" >&2; exit 1; }
    bash "$tools/base_images.sh"
fi
if ! have "$(images | grep '^grafana/')"; then
    echo "Without Grafana: $(images | grep '^grafana/') cannot be had here."
    export KVMESH_TEST_WITHOUT=grafana
fi
"$python" -m pytest -m compose tests/compose "$@"

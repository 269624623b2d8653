#!/bin/sh
# Certificates for compose.tls.yaml: an authority, and a certificate for each service and a client.
#
#   compose/tls/make.sh [NAME]...
#
# Each NAME is one more by which clients know the router, an address too: `make.sh llm.example 10.0.0.2`.
# Again renews all but the authority, in place: routers and nodes read them at the next handshake.
# KVMESH_TLS_DIR (compose/tls/files) is the folder. Certificates live for KVMESH_TLS_DAYS (90).
set -eu
folder=${KVMESH_TLS_DIR:-$(dirname "$0")/files}
days=${KVMESH_TLS_DAYS:-90}
umask 077
mkdir -p "$folder"
cd "$folder"

# The folder is for its owner alone; files in it are mounted one by one, for users of containers.
key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null; }

# name SUBJECT... : the extension that lists them
alternatives() {
    for each in "$@"; do
        case $each in
        *[!0-9.:]*) printf 'DNS:%s\n' "$each" ;;
        *) printf 'IP:%s\n' "$each" ;;
        esac
    done | paste -s -d ,
}

# issue NAME ALTERNATIVE...
issue() {
    name=$1
    shift
    key "$name.key"
    {
        echo "basicConstraints=critical,CA:FALSE"
        echo "keyUsage=critical,digitalSignature"
        echo "extendedKeyUsage=serverAuth,clientAuth"
        echo "subjectAltName=$(alternatives "$name" "$@")"
    } >"$name.ext"
    openssl req -new -key "$name.key" -subj "/CN=$name" |
        openssl x509 -req -CA ca.pem -CAkey ca.key -days "$days" -extfile "$name.ext" \
            -out "$name.pem" 2>/dev/null
    rm "$name.ext"
    chmod 644 "$name.key" "$name.pem"
}

if [ ! -e ca.key ]; then
    key ca.key
    openssl req -x509 -new -key ca.key -subj "/CN=kvmesh" -days 3650 -out ca.pem \
        -addext "keyUsage=critical,keyCertSign,cRLSign"
    chmod 644 ca.pem
fi
issue router localhost 127.0.0.1 "$@"
issue cache-node localhost 127.0.0.1
issue redis localhost 127.0.0.1
issue prometheus
issue client
echo "In $folder, for $days days: ca, router, cache-node, redis, prometheus, client"
